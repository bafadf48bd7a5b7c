"""A training step on one device, from the prices of its ops: what a GPU works, what its host needs to ask for it.

The host runs ahead of a GPU, so a step takes the longer of the two sums. Beside the ops a step has what autograd
adds (a value that several ops read has its gradients summed; a tied weight too) and the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.capture.program import Op, Program, Segment, SegmentGraph, TensorType, Value
from meshwright.cluster import Device
from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cluster.profile_load import profile_of
from meshwright.price.compute import whole_op_seconds
from meshwright.profile.chain import walk
from meshwright.profile.count import ATTENTIONS, VIEWS
from meshwright.profile.operands import packet, type_bytes
from meshwright.profile.places import Places
from meshwright.profile.saved import DeviceKind
from meshwright.profile.static import rounding

_EVEN = 10
"""Seen on an H200: a step whose host and device need the same takes some 7 % longer than either."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Of the device and of its host, by phase."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    forward_host_s: float
    backward_host_s: float
    optimizer_host_s: float

    @property
    def device_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def host_s(self) -> float:
        return self.forward_host_s + self.backward_host_s + self.optimizer_host_s

    @property
    def step_s(self) -> float:
        """The longer of the two; where they are close, each waits for the other now and then."""
        longer, shorter = max(self.device_s, self.host_s), min(self.device_s, self.host_s)
        return longer * (1 + (shorter / longer) ** _EVEN) ** (1 / _EVEN) if longer else 0.0


@dataclass(slots=True)
class _Sums:
    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    readers: Counter[str] = field(default_factory=Counter)
    types: dict[str, TensorType] = field(default_factory=dict)


def step_seconds(
    program: Program, device: Device, optimizer: str = "adamw", implementation: str = "foreach"
) -> StepSeconds:
    """One eager step at the program's batch: forward, backward, the optimizer's."""
    profile = profile_of(device)
    start_s = profile.host("start")
    sums = _Sums(forward_host_s=start_s[0], backward_host_s=start_s[1])
    for graph, segment, places in _parts(program, device):
        _add_graph(sums, graph, segment, places, device, profile)
    for name, count in sums.readers.items():
        type_ = sums.types[name]
        sums.backward_s += (count - 1) * profile.kernel_s("add.forward", type_.dtype, 3 * type_bytes(type_))
        sums.backward_host_s += (count - 1) * profile.host("add", type_.dtype)[0]
    host_s, device_s = _optimizer(program, profile, f"{optimizer}.{implementation}")
    return StepSeconds(sums.forward_s, sums.backward_s, device_s, sums.forward_host_s, sums.backward_host_s, host_s)


def _parts(program: Program, device: Device) -> Iterator[tuple[SegmentGraph, Segment | None, Places]]:
    kind: DeviceKind = "cpu" if device.kind == "cpu" else "cuda"
    chain = walk(program, kind, rounding(kind))
    yield program.prologue.at(program.batch), None, chain.prologue.facts.places
    fixed = [graph.at(program.batch) for graph in program.graphs]
    for segment, link in zip(program.segments, chain.links, strict=True):
        yield fixed[segment.graph].bind(segment.scalars), segment, link.facts.places


def _add_graph(
    sums: _Sums, graph: SegmentGraph, segment: Segment | None, places: Places, device: Device, profile: DeviceProfile
) -> None:
    values, names = graph.values(), _global_names(graph, segment)
    for op in graph.ops:
        operands = [values[name] for name in op.operands()]
        unfused = packet(op.target) in ATTENTIONS and places.kernel(op, operands) == "math"
        found = whole_op_seconds(op, values, device, unfused)
        sums.forward_s += found.forward_s + _copy_s(op, values, places, profile)
        sums.backward_s += found.backward_s
        sums.forward_host_s += found.forward_host_s
        sums.backward_host_s += found.backward_host_s
        if any(value.grad for value in op.results):
            for value in operands:
                if value.grad:
                    name = names.get(value.name) or f"{segment.name if segment else ''}/{value.name}"
                    sums.readers[name] += 1
                    sums.types[name] = value.type
    modules = {op.module[:end] for op in graph.ops for end in _ends(op.module)}
    sums.forward_host_s += profile.host("module")[0] * len(modules)


def _global_names(graph: SegmentGraph, segment: Segment | None) -> dict[str, str]:
    """What values that cross a boundary, and parameters, are called in the whole program."""
    if segment is None:
        return {}
    found = dict(zip((v.name for v in graph.inputs + graph.params), segment.inputs + segment.params, strict=True))
    return found | dict(zip(graph.outputs, segment.outputs, strict=True))


def _copy_s(op: Op, values: dict[str, Value], places: Places, profile: DeviceProfile) -> float:
    """A reshape of a value that does not lie in that order has to copy it."""
    if packet(op.target) not in VIEWS or not op.operands():
        return 0.0
    if places.of[op.name].storage == places.of[op.operands()[0]].storage:
        return 0.0
    type_ = values[op.name].type
    return profile.kernel_s("turned.forward", type_.dtype, 2 * type_bytes(type_))


def _optimizer(program: Program, profile: DeviceProfile, name: str) -> tuple[float, float]:
    """(host, device) seconds: parameters of one dtype are updated together."""
    sizes: dict[str, list[int]] = {}
    for parameter in program.parameters:
        if parameter.trainable:
            sizes.setdefault(parameter.type.dtype, []).append(type_bytes(parameter.type.at(1)))
    found = [profile.optimizer(name, dtype, len(each), sum(each)) for dtype, each in sizes.items()]
    return sum(pair[0] for pair in found), sum(pair[1] for pair in found)


def _ends(path: str) -> list[int]:
    """Where each module on the way to this one ends: `layers.0.norm` is called inside `layers.0`, inside the model."""
    return [i for i, letter in enumerate(path) if letter == "."] + [len(path)]
