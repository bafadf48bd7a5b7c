"""A training step on one device, from the prices of its ops: what a GPU works, what its host needs to ask for it.

The host runs ahead of a GPU, so steps one after the other take the longer of the two sums each, unless an op makes the
host wait for the device: both are played op by op. Beside the ops a step has what autograd adds (a value that several
ops read has its gradients summed; a tied weight too) and the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.capture.program import Op, Program, Segment, SegmentGraph, TensorType, Value
from meshwright.cluster import Device
from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.op.compute import whole_op_seconds
from meshwright.cost.op.gradients import Made, copied_gradients
from meshwright.profile.chain import walk
from meshwright.profile.count import ATTENTIONS, VIEWS
from meshwright.profile.operands import packet, type_bytes
from meshwright.profile.places import Places
from meshwright.profile.saved import DeviceKind
from meshwright.profile.static import rounding

_STEPS = 4
"""How many are played: the first fills the queue."""


class _Call(NamedTuple):
    """An op asked for: the host's seconds, the device's, how often the host waits for the device."""

    host_s: float
    device_s: float
    waits: int = 0


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Of the device and of its host, by phase."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    forward_host_s: float
    backward_host_s: float
    optimizer_host_s: float
    step_s: float
    """Of one step among others, as host and device wait for each other."""

    @property
    def device_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def host_s(self) -> float:
        return self.forward_host_s + self.backward_host_s + self.optimizer_host_s


@dataclass(slots=True)
class _Calls:
    forward: list[_Call] = field(default_factory=list)
    backward: list[_Call] = field(default_factory=list)
    readers: Counter[str] = field(default_factory=Counter)
    types: dict[str, TensorType] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)


def step_seconds(
    program: Program, device: Device, optimizer: str = "adamw", implementation: str = "foreach"
) -> StepSeconds:
    """One eager step at the program's batch: forward, backward, the optimizer's."""
    profile = profile_of(device)
    start_s = profile.host("start")
    calls = _Calls([_Call(start_s[0], 0.0)])
    for graph, segment, places in _parts(program, device):
        _add_graph(calls, graph, segment, places, device, profile)
    calls.backward.append(_Call(start_s[1], 0.0))
    calls.backward.reverse()
    summed_s = profile.host("summed")[1] or profile.host("add")[0]
    for name, count in calls.readers.items():
        type_ = calls.types[name]
        add_s = profile.kernel_s("add.forward", type_.dtype, 3 * type_bytes(type_))
        calls.backward += [_Call(summed_s, add_s)] * (count - 1)
    copy_s = max(0.0, profile.host("reshaped")[0] - profile.host("view")[0])
    for name in copied_gradients(calls.made, calls.readers):
        type_ = calls.types[name]
        calls.backward.append(_Call(copy_s, profile.kernel_s("add.forward", type_.dtype, 2 * type_bytes(type_))))
    update = _Call(*_optimizer(program, profile, f"{optimizer}.{implementation}"))
    phases = (calls.forward, calls.backward, [update])
    step_s = _played([call for phase in phases for call in phase])
    (forward_s, backward_s, update_s), (forward_host_s, backward_host_s, update_host_s) = (
        [sum(call[side] for call in phase) for phase in phases] for side in (1, 0)
    )
    return StepSeconds(forward_s, backward_s, update_s, forward_host_s, backward_host_s, update_host_s, step_s)


def _played(calls: Sequence[_Call]) -> float:
    """Seconds of a step when the host asks for one after the other."""
    host_s = device_s = 0.0
    ends = []
    for _ in range(_STEPS):
        for call in calls:
            if not call.waits:
                host_s += call.host_s
                device_s = max(device_s, host_s) + call.device_s if call.device_s else device_s
            for _ in range(call.waits):
                begin_s = max(host_s, device_s)
                host_s = begin_s + call.host_s / call.waits
                device_s = max(begin_s + call.device_s / call.waits, host_s)
        ends.append(max(host_s, device_s))
    return (ends[-1] - ends[0]) / (_STEPS - 1)


def _parts(program: Program, device: Device) -> Iterator[tuple[SegmentGraph, Segment | None, Places]]:
    kind: DeviceKind = "cpu" if device.kind == "cpu" else "cuda"
    chain = walk(program, kind, rounding(kind))
    yield program.prologue.at(program.batch), None, chain.prologue.facts.places
    fixed = [graph.at(program.batch) for graph in program.graphs]
    for segment, link in zip(program.segments, chain.links, strict=True):
        yield fixed[segment.graph].bind(segment.scalars), segment, link.facts.places


def _add_graph(
    calls: _Calls, graph: SegmentGraph, segment: Segment | None, places: Places, device: Device, profile: DeviceProfile
) -> None:
    values, names = graph.values(), _global_names(graph, segment)
    for op in graph.ops:
        operands = [values[name] for name in op.operands()]
        unfused = packet(op.target) in ATTENTIONS and places.kernel(op, operands) == "math"
        found = whole_op_seconds(op, values, device, unfused)
        copy = _copy(op, values, places, profile)
        parts = found.parts or (found,)
        calls.forward += [copy] if copy.host_s or copy.device_s else []
        calls.forward += [_Call(part.forward_host_s, part.forward_s, part.forward_waits) for part in parts]
        if any(value.grad for value in op.results):
            named = [names.get(n) or f"{segment.name if segment else ''}/{n}" for n in (op.name, *op.operands())]
            calls.made.append(Made(op, named[0], tuple(named[1:]), tuple(value.type.sizes for value in operands)))
            calls.types.setdefault(named[0], op.results[0].type)
            calls.backward += [_Call(part.backward_host_s, part.backward_s, part.backward_waits) for part in parts]
            for value in operands:
                if value.grad:
                    name = names.get(value.name) or f"{segment.name if segment else ''}/{value.name}"
                    calls.readers[name] += 1
                    calls.types[name] = value.type
    modules = {op.module[:end] for op in graph.ops for end in _ends(op.module)}
    calls.forward.append(_Call(profile.host("module")[0] * len(modules), 0.0))


def _global_names(graph: SegmentGraph, segment: Segment | None) -> dict[str, str]:
    """What values that cross a boundary, and parameters, are called in the whole program."""
    if segment is None:
        return {}
    found = dict(zip((v.name for v in graph.inputs + graph.params), segment.inputs + segment.params, strict=True))
    return found | dict(zip(graph.outputs, segment.outputs, strict=True))


def _copy(op: Op, values: dict[str, Value], places: Places, profile: DeviceProfile) -> _Call:
    """What a reshape of a value that does not lie in that order takes more: it has to copy it."""
    if packet(op.target) not in VIEWS or not op.operands():
        return _Call(0.0, 0.0)
    if places.of[op.name].storage == places.of[op.operands()[0]].storage:
        return _Call(0.0, 0.0)
    type_ = values[op.name].type
    more_s = profile.host("reshaped", type_.dtype)[0] - profile.host("view", type_.dtype)[0]
    return _Call(max(0.0, more_s), profile.kernel_s("turned.forward", type_.dtype, 2 * type_bytes(type_)))


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
