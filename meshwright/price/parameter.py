"""Seconds and bytes of a parameter: from storage to compute layout and back, and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import Value
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.layout import Conversion, Layout, conversion
from meshwright.plan import ParameterPlan

STATES = {"adamw": 2, "momentum": 1, "sgd": 0}
"""Tensors of optimizer state per parameter; each step reads and writes them, reads the gradient."""


@dataclass(frozen=True, slots=True)
class ParameterPrice:
    """first_s: gathers. last_s: the gradient's reduction. step_s: the optimizer's update of what is stored."""

    first_s: float
    last_s: float
    step_s: float
    static_bytes: int
    transient_bytes: int
    gather: Conversion

    @property
    def total_s(self) -> float:
        return self.first_s + self.last_s + self.step_s


def gathers(plan: ParameterPlan, uses: int) -> int:
    """How often a step brings a parameter to its compute layout: before each use, or once."""
    return 2 * uses if plan.regather else 1


def parameter_price(value: Value, plan: ParameterPlan, mesh: Mesh, optimizer: str, uses: int = 1) -> ParameterPrice:
    """`uses`: how many segments read it; more than one for tied weights."""
    storage, compute = Layout.parse(plan.storage), Layout.parse(plan.compute)
    shape, itemsize = value.type.sizes, value.type.itemsize
    gather = conversion(storage, compute, shape, itemsize, mesh, grad=value.grad)
    stored, computed = (local_bytes(shape, itemsize, layout, mesh) for layout in (storage, compute))
    copied = computed if stored != computed else 0
    states = STATES[optimizer] if value.grad else 0
    step_s = 0.0
    if value.grad:
        # Read the parameter, its gradient and states; write the parameter and states. One fused launch per step.
        step_s = stored * (3 + 2 * states) / (mesh.device.memory_bandwidth * mesh.device.achievable_fraction("memory"))
    held = stored * (1 + states) + (stored if value.grad else 0)
    return ParameterPrice(
        gathers(plan, uses) * gather.forward_s,
        gather.backward_s,
        step_s,
        held + (0 if plan.regather else copied),
        (copied if plan.regather else 0) + (copied if value.grad else 0),
        gather,
    )


def local_bytes(shape: tuple[int, ...], itemsize: int, layout: Layout, mesh: Mesh) -> int:
    size = itemsize
    for length in layout.local_shape(shape, mesh.sizes):
        size *= length
    return size


def check_optimizer(name: str) -> None:
    if name not in STATES:
        raise PlanError(f"optimizer {name!r}", f"one of {', '.join(STATES)}", "name one of these")
