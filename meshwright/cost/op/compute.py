"""Seconds of one op on one device, by the device's profile: on local shapes, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.capture.program import Op, Value
from meshwright.cluster import Device
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.op.case import Case, tensor
from meshwright.cost.op.kernels import device_seconds, host_seconds, literals, name_of
from meshwright.profile.count import op_kind
from meshwright.rules import Strategy

_Local = tuple[tuple[int, ...], str, bool]
"""Shape, dtype, and whether there is a gradient."""


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """Of the device: forward, the gradients of the inputs and of the weights. And of the host that asks for the op
    meanwhile, as part of a segment pair: a step takes the longer of the two sums."""

    forward_s: float
    input_s: float
    weight_s: float
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0

    @property
    def backward_s(self) -> float:
        return self.input_s + self.weight_s

    def slowed(self, by: float) -> OpSeconds:
        """On a device whose clocks are lower."""
        return replace(self, forward_s=by * self.forward_s, input_s=by * self.input_s, weight_s=by * self.weight_s)

    def scaled(self, share: float) -> OpSeconds:
        return OpSeconds(
            share * self.forward_s,
            share * self.input_s,
            share * self.weight_s,
            share * self.forward_host_s,
            share * self.backward_host_s,
        )


def op_seconds(op: Op, made: Strategy, values: Mapping[str, Value], device: Device, share: float = 1.0) -> OpSeconds:
    """The lowering's local work, collectives aside, in the midst of a step. Backward runs only where a result carries a
    gradient. share: what of it is left where the op is compiled with its neighbours (`cost.op.fused`)."""
    run = made.lowering
    pairs = zip(op.operands(), made.pieces, strict=True)
    operands = tuple([(piece.sizes, piece.dtype, values[name].grad) for name, piece in pairs])
    results = tuple(
        [(new.type.sizes, new.type.dtype, old.grad) for new, old in zip(run.results, op.results, strict=True)]
    )
    found = _seconds(run, operands, results, device, False)
    if operands and op_kind(run) not in ("view", "memory"):
        sustained = profile_of(device).sustained(operands[0][1])
        found = found if sustained == 1.0 else found.slowed(1.0 / sustained)
    return found if share == 1.0 else found.scaled(share)


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
    seconds, host = device_seconds(case), host_seconds(case)
    return OpSeconds(*seconds, *host) if back else OpSeconds(seconds[0], 0.0, 0.0, host[0])
