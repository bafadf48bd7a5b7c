"""Steps of a conversion path, and the collectives they run. Pure data: no torch.

A Step changes one axis, or several at once through a flattened collective, from `source` to `target`.
The table below is the whole algebra: per pair of states, what runs forward and what runs backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.layout.states import Layout, State

COMMUNICATING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# (source kind, target kind) -> (forward, backward). The backward of a value is the forward of its gradient.
DUALS: dict[tuple[str, str], tuple[str, str]] = {
    ("I", "R"): ("none", "all_reduce"),
    ("I", "S"): ("take_slice", "all_gather"),
    ("I", "P"): ("keep_on_first", "none"),
    ("R", "I"): ("none", "keep_on_first"),
    ("R", "S"): ("take_slice", "place_slice"),
    ("R", "P"): ("keep_on_first", "keep_on_first"),
    ("P", "I"): ("all_reduce", "none"),
    ("P", "R"): ("all_reduce", "all_reduce"),
    ("P", "S"): ("reduce_scatter", "all_gather"),
    ("S", "I"): ("all_gather", "take_slice"),
    ("S", "R"): ("all_gather", "reduce_scatter"),
    ("S", "P"): ("place_slice", "take_slice"),
    ("S", "S"): ("all_to_all", "all_to_all"),
}


@dataclass(frozen=True, slots=True)
class Collective:
    """A communicating op as it runs on one rank.

    `bytes`: of the tensor (all_reduce), the output (all_gather), the input (reduce_scatter), the local input
    (all_to_all). `axis` is a mesh axis name, or several joined by `*`.
    """

    kind: str
    axis: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind}({self.axis}, {self.bytes} B)"


@dataclass(frozen=True, slots=True)
class Step:
    """`axes` (indices, outermost first) go together from their states in `source` to those in `target`."""

    axes: tuple[int, ...]
    source: Layout
    target: Layout

    @property
    def pair(self) -> tuple[State, State]:
        """The states before and after on the first of the axes; the others change in the same way."""
        return self.source[self.axes[0]], self.target[self.axes[0]]

    @property
    def forward(self) -> str:
        before, after = self.pair
        return DUALS[before.kind, after.kind][0]

    @property
    def backward(self) -> str:
        before, after = self.pair
        return DUALS[before.kind, after.kind][1]

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}: {self.forward} / {self.backward}"
