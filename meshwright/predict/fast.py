"""Rough predictions of plans of one stage, for searches.

Seconds are those of the fast path of the clock (`price.overlap`), which a property test holds equal to the simulator.
The peak counts everything that may be held at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol

from meshwright.plan import FrontierPoint, Prediction
from meshwright.price.overlap import host_waits_s, overlapped, pending_grad_bytes

NOTHING = Prediction(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0.0)
"""Of a plan that is yet to be predicted."""


def quick_prediction(
    points: Sequence[FrontierPoint], microbatches: int, exact_peak: bool, gradients: Sequence[int] = ()
) -> Prediction:
    """The prediction without collectives and gap.

    exact_peak: transients are those of traced pairs, so activations of later segments count only once these run.
    Otherwise everything held counts at every moment.
    gradients: bytes of each segment's static bytes that its backward makes.
    """
    static = sum(point.static_bytes for point in points) - sum(gradients)
    resident = sum(point.resident_bytes for point in points)
    peak = static + resident + max(point.transient_bytes for point in points)
    if exact_peak:
        peak = static + max(peak_beside(points, gradients), sum(gradients))
    peak += pending_grad_bytes(points, microbatches)
    alone_s, step_s = sum(point.seconds(microbatches) for point in points), overlapped(points, microbatches)
    host_s = host_waits_s(points, microbatches)
    return Prediction(
        step_s=step_s,
        forward_s=microbatches * sum(point.forward_s for point in points),
        backward_s=microbatches * sum(point.backward_s for point in points),
        parameters_s=sum(point.gather_params_s + point.reduce_grads_s for point in points),
        communication_s=0.0,
        optimizer_s=sum(point.step_s for point in points),
        static_bytes=static,
        resident_bytes=resident,
        transient_bytes=max(0, peak - static - resident),
        peak_bytes=peak,
        gap=0.0,
        hidden_s=max(0.0, alone_s - (step_s - host_s)),
        host_s=host_s,
    )


class Running(Protocol):
    """What runs holds; of FrontierPoints and RematPoints."""

    @property
    def resident_bytes(self) -> int: ...
    @property
    def forward_transient_bytes(self) -> int: ...
    @property
    def backward_transient_bytes(self) -> int: ...


def peak_beside(runs: Sequence[Running], gradients: Sequence[int]) -> int:
    """The most bytes in use while segments run, besides those that are held throughout.

    Activations of later segments count once these run, gradients from their backward on.
    """
    held, made, most = 0, sum(gradients), 0
    for run, size in zip_longest(runs, gradients, fillvalue=0):
        assert not isinstance(run, int)
        held, made = held + run.resident_bytes, made - size
        most = max(most, held + max(run.forward_transient_bytes, run.backward_transient_bytes + made))
    return most
