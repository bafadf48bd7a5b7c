"""A plan's FrontierPoints, priced from the plan alone: op by op on the unfolded program.

Rematerialisation is priced on the traced pairs: the seconds of the chosen cut less those of the cut that keeps
everything, the bytes that it saves, and the peaks of its forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.plan import FrontierPoint, Plan, Prediction
from meshwright.planner.memory.curves import Curves, curves
from meshwright.predict.fast import quick_prediction
from meshwright.predict.one_stage import gradients_of, is_traced
from meshwright.predict.pieces import Piece, stage_pieces
from meshwright.predict.ways import bare, with_choices
from meshwright.remat.curve import RematPoint
from meshwright.remat.inner import CHUNKS


def plan_points(plan: Plan, program: Program) -> list[FrontierPoint]:
    """The cost of every segment under the plan, run forward once; `ordered` adds that of a nested order."""
    if not plan.recomputes:
        return keeping_all(plan, program)
    found = RematOptions.of(plan, program)
    return [found.point(i, kept) for i, kept in enumerate(found.picked(plan))]


def keeping_all(plan: Plan, program: Program) -> list[FrontierPoint]:
    """The costs with everything kept that autograd saves."""
    return [piece.point for piece in stage_pieces(plan, program, 0)]


@dataclass(frozen=True, slots=True)
class RematOptions:
    """The rematerialisation points of a sharded plan.

    points: of each segment with everything kept.
    gathered: bytes of each segment's gathered weights.
    gradients: bytes per segment that its backward adds until the step.
    traced: the segments' prices, where seconds are those of traced pairs.
    """

    points: list[FrontierPoint]
    gathered: list[int]
    curves: Curves
    gradients: tuple[int, ...]
    traced: list[Piece] | None = None

    @classmethod
    def of(cls, plan: Plan, program: Program, chunks: tuple[int, ...] = CHUNKS) -> RematOptions:
        """chunks: numbers of chunks in which the backward of an inner segment may run."""
        every = range(len(program.segments))
        kept = with_choices(plan, [bare(plan.choice(i)) for i in every])
        pieces = stage_pieces(kept, program, 0)
        points, gathered = [piece.point for piece in pieces], [piece.gathered for piece in pieces]
        made = gradients_of(plan, program) if plan.microbatches == 1 else [0] * len(pieces)
        found = curves(program, kept, plan.mesh.device, fused=plan.compile, chunks=chunks)
        return cls(points, gathered, found, tuple(made), pieces if is_traced(plan) else None)

    def picked(self, plan: Plan) -> list[RematPoint]:
        """The points that a plan's choices name."""
        return [self.curves.priced(index, plan.choice(index)) for index in range(len(self.points))]

    def predicted(self, picked: Sequence[RematPoint], microbatches: int) -> Prediction:
        """The prediction with these points, every segment forward once, with room for the largest offloaded value."""
        points = [self.point(index, kept) for index, kept in enumerate(picked)]
        found = quick_prediction(points, microbatches, True, self.gradients)
        aside = max(kept.offloaded_bytes for kept in picked)
        return replace(found, peak_bytes=found.peak_bytes + aside, transient_bytes=found.transient_bytes + aside)

    @property
    def static_bytes(self) -> int:
        return sum(point.static_bytes for point in self.points) - sum(self.gradients)

    def point(self, index: int, kept: RematPoint) -> FrontierPoint:
        point, found = self.points[index], kept.with_transient(self.gathered[index])
        more_s = max(0.0, kept.seconds - self.curves.options[index][0].seconds)
        if self.traced is not None:
            point, more_s = self.traced[index].traced(kept).point, 0.0
        more_host_s = point.forward_host_s * (more_s / point.forward_s if point.forward_s else 0.0)
        return replace(
            point,
            choice=kept.on(point.choice),
            backward_input_s=point.backward_input_s + more_s,
            backward_host_s=point.backward_host_s + more_host_s,
            grad_buckets=1 if kept.chunks > 1 or self.curves.fused else point.grad_buckets,
            resident_bytes=found.resident_bytes,
            forward_transient_bytes=found.forward_transient_bytes,
            backward_transient_bytes=found.backward_transient_bytes,
        )
