"""What a rank holds of a micro-batch while it is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from meshwright.capture.counter import RandomState
from meshwright.generate.pieces import Rest
from meshwright.runtime.step.offload import OffloadedTensors


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch on its way: boundary values, what forwards saved, gradients on their way back.

    values, gradients: by name and by the first segment of the stage whose layout they have. shared_values: those of a
    stage, while its forward runs. weight: its share in the loss; a micro-batch of weight zero, all of whose targets are
    ignored, is not run. random: what its random numbers are made from. rest: what weight halves wait with. before:
    where segments run forward more than once, their buffers as they were the first time. away: what waits
    on the host.
    """

    number: int
    batch: Mapping[str, Tensor]
    weight: float
    random: RandomState
    values: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    shared_values: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    saved: dict[int, list[Tensor]] = field(default_factory=dict)
    rest: dict[int, Rest] = field(default_factory=dict)
    before: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    away: dict[int, OffloadedTensors] = field(default_factory=dict)
    gradients: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    loss: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        """All that it keeps alive, the batch aside."""
        yield from self.values.values()
        yield from self.gradients.values()
        for shared_values in self.shared_values.values():
            yield from shared_values.values()
        for saved in self.saved.values():
            yield from saved
        for rest in self.rest.values():
            yield from rest.tensors()
        for parked in self.away.values():
            yield from (*parked.leaving, *parked.coming)
