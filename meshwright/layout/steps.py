"""Steps of a conversion path, and the collectives they run. Pure data: no torch.

A Step changes one axis, or several at once through a flattened collective, from `source` to `target`.
`DUALS` is the whole algebra: per pair of states, what runs forward and what runs backward. Axes that change together
share the forward op; where their targets differ (`[S(0), S(1)] -> [I, R]`), `_joint` says what runs backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.layout.states import Layout

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
class Op:
    """What a step runs in one direction: `kind` over `axes`; before a reduce-scatter, slices along `sliced`."""

    kind: str
    axes: tuple[int, ...]
    sliced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """`axes` (indices, outermost first) go together from their states in `source` to those in `target`."""

    axes: tuple[int, ...]
    source: Layout
    target: Layout
    forward_op: Op
    backward_op: Op

    @classmethod
    def of(cls, axes: tuple[int, ...], source: Layout, target: Layout) -> Step:
        forward, backward = _joint(axes, source, target)
        return cls(axes, source, target, forward, backward)

    @property
    def forward(self) -> str:
        return self.forward_op.kind

    @property
    def backward(self) -> str:
        return self.backward_op.kind

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}: {self.forward} / {self.backward}"


def _joint(axes: tuple[int, ...], source: Layout, target: Layout) -> tuple[Op, Op]:
    """Forward and backward of axes that change together.

    Towards a mixture of R and I, the gradient is partial on the axes of R alone: only those reduce it, and a
    sharded source takes its slice along the axes of I first, so that less is sent.
    """
    forward, backward = DUALS[source[axes[0]].kind, target[axes[0]].kind]
    partial = tuple(i for i in axes if target[i].kind == "R")
    if not partial or len(partial) == len(axes):
        return Op(forward, axes), Op(backward, axes)
    rest = tuple(i for i in axes if i not in partial)
    if source[axes[0]].kind == "S":
        return Op(forward, axes), Op("reduce_scatter", partial, rest)
    return Op(forward, axes), Op("all_reduce", partial)
