"""Seconds of one op on one device, by the device's profile: on local shapes, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.capture.program import Op, Value
from meshwright.cluster import Device
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.op.case import Case, tensor
from meshwright.cost.op.kernels import device_seconds, host_seconds, literals, name_of, waits
from meshwright.cost.op.mixture import experts
from meshwright.profile.mixture import MIXTURES
from meshwright.rules import Strategy

_Local = tuple[tuple[int, ...], str, bool]
"""Shape, dtype, and whether there is a gradient."""


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """Of the device; and of the host that asks for the op meanwhile: a step takes the longer of the two sums.

    Eager PyTorch keeps what backward needs as it goes (`host`); a segment pair calls plain kernels (`pair`). `waits`:
    how often the host waits for the device before it goes on.
    """

    forward_s: float
    backward_s: float
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    forward_pair_s: float = 0.0
    backward_pair_s: float = 0.0
    forward_waits: int = 0
    backward_waits: int = 0
    parts: tuple[OpSeconds, ...] = ()
    """The same one after the other, where the host waits for the device in the midst of an op that is several."""


def op_seconds(
    op: Op, made: Strategy, values: Mapping[str, Value], mesh_sizes: tuple[int, ...], device: Device
) -> OpSeconds:
    """The lowering's local work, collectives aside. Backward runs only where a result carries a gradient."""
    run = made.lowering
    operands = []
    for name, layout in zip(op.operands(), made.operands, strict=True):
        value = values[name]
        operands.append((layout.local_shape(value.type.sizes, mesh_sizes), value.type.dtype, value.grad))
    results = tuple(
        (new.type.sizes, new.type.dtype, old.grad) for new, old in zip(run.results, op.results, strict=True)
    )
    return _seconds(run, tuple(operands), results, device, False)


def whole_op_seconds(op: Op, values: Mapping[str, Value], device: Device, unfused: bool = False) -> OpSeconds:
    """The same on one device, where every value is whole. `unfused`: an attention that no fused kernel takes."""
    operands = tuple(_local(values[name]) for name in op.operands())
    return _seconds(op, operands, tuple(map(_local, op.results)), device, unfused)


def _local(value: Value) -> _Local:
    return value.type.sizes, value.type.dtype, value.grad


def _seconds(
    run: Op, operands: tuple[_Local, ...], results: tuple[_Local, ...], device: Device, unfused: bool
) -> OpSeconds:
    profile = profile_of(device)
    key = (run.target, operands, results, literals(run), unfused)
    found = profile.memo.get(key)
    if found is None:
        local = (tuple(tensor(*one) for one in side) for side in (operands, results))
        case = Case(run, name_of(run), next(local), next(local), profile, unfused)
        found = profile.memo[key] = _priced(case, any(grad for _, _, grad in results))
    assert isinstance(found, OpSeconds)
    return found


def _priced(case: Case, back: bool) -> OpSeconds:
    (forward_s, backward_s), host, pair = device_seconds(case), host_seconds(case), host_seconds(case, pair=True)
    forward, backward = waits(case)
    if not back:
        return OpSeconds(forward_s, 0.0, host[0], 0.0, pair[0], 0.0, forward)
    found = OpSeconds(forward_s, backward_s, *host, *pair, forward, backward)
    return replace(found, parts=_parts(case, found)) if forward and case.name in MIXTURES else found


def _parts(case: Case, whole: OpSeconds) -> tuple[OpSeconds, ...]:
    """The experts' ops; what brings tokens to them and back is half before and half after."""
    inner = [_priced(part, back=True) for part in experts(case)]
    sides = ("forward_s", "backward_s", "forward_host_s", "backward_host_s", "forward_pair_s", "backward_pair_s")
    rest = (getattr(whole, side) - sum(getattr(part, side) for part in inner) for side in sides)
    half = OpSeconds(*(max(0.0, seconds) / 2 for seconds in rest))
    return half, *inner, half
