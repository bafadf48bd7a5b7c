"""Layout: per mesh axis, where a value is and where its gradient is. Four states:

    S(d)  sharded on tensor dim d           gradient sharded alike
    P     partial: the ranks' sum is it     gradient replicated
    R     replicated, used by different     gradient partial
          work on each rank
    I     replicated, invariant: the same   gradient replicated, nothing to reduce
          work on each rank

Several axes may shard one dim; then the left axis is outermost, as in DTensor. Uneven sizes split as
`torch.chunk` does: pieces of ceil(n / k), the last one smaller or empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from meshwright.caches import CACHES
from meshwright.cluster.frozen import HashedOnce
from meshwright.errors import LayoutError

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

_STATE = re.compile(r"S\(([0-9]{1,6})\)|([PRI])")


@dataclass(frozen=True, slots=True)
class State(HashedOnce):
    """One axis of a layout. `kind` is S, P, R or I; `dim` is the tensor dim of S and None otherwise."""

    kind: str
    dim: int | None = None

    __hash__ = HashedOnce.__hash__

    def __str__(self) -> str:
        return f"S({self.dim})" if self.kind == "S" else self.kind

    @property
    def is_shard(self) -> bool:
        return self.kind == "S"


P = State("P")
R = State("R")
I = State("I")  # noqa: E741  the letter is the project's word for it


@CACHES.memoized(typed=True)
def S(dim: int) -> State:  # noqa: N802  written as in the text form
    """Sharded on tensor dim `dim`."""
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
        raise LayoutError(f"S({dim!r})", "a dim counted from 0")
    return State("S", dim)


@dataclass(frozen=True, slots=True)
class Layout(HashedOnce):
    """One State per mesh axis, outermost axis first. Prints and parses as `[S(0), R]`."""

    states: tuple[State, ...]

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        if type(self.states) is not tuple or any(type(state) is not State for state in self.states):
            raise LayoutError(
                f"Layout({self.states!r})", "a tuple of states", 'write Layout.of(S(0), R) or Layout.parse("[S(0), R]")'
            )

    @classmethod
    def of(cls, *states: State) -> Layout:
        return cls(states)

    @classmethod
    def parse(cls, text: str) -> Layout:
        if not isinstance(text, str):
            raise LayoutError(f"layout {text!r}", "text such as [S(0), R]")
        return _parsed(text)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.states))}]"

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, axis: int) -> State:
        return self.states[axis]

    def replace(self, axis: int, state: State) -> Layout:
        """The layout with another state on the axis of this index."""
        return Layout((*self.states[:axis], state, *self.states[axis + 1 :]))

    def sharding(self, dim: int) -> tuple[int, ...]:
        """Indices of the axes that shard `dim`, outermost first."""
        return tuple(i for i, state in enumerate(self.states) if state.dim == dim)

    def shard_factor(self, mesh_sizes: Sequence[int]) -> int:
        """How many pieces the value is cut into: local bytes are global bytes over this, when even."""
        return prod(size for state, size in zip(self.states, mesh_sizes, strict=True) if state.is_shard)

    def local_shape(
        self, shape: Sequence[int], mesh_sizes: Sequence[int], coordinates: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """The piece's shape at `coordinates` of the mesh; the first rank, whose piece is largest, by default."""
        local = list(shape)
        if len(self.states) != len(mesh_sizes):
            self.check(shape, mesh_sizes)
        for axis, (state, size) in enumerate(zip(self.states, mesh_sizes, strict=True)):
            dim = state.dim
            if dim is None:
                continue
            if coordinates is None:
                local[dim] = -(-local[dim] // size)  # the first piece is the largest
            else:
                local[dim] = chunk_length(local[dim], size, coordinates[axis])
        return tuple(local)

    def global_shape(self, local: Sequence[int], mesh_sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape whose even pieces are `local`."""
        shape = list(local)
        for state, size in zip(self.states, mesh_sizes, strict=True):
            if state.dim is not None:
                shape[state.dim] *= size
        return tuple(shape)

    def reduced(self) -> Layout:
        """The same pieces with nothing left to reduce."""
        return Layout(tuple(state if state.is_shard else I for state in self.states))

    def is_even(self, shape: Sequence[int], mesh_sizes: Sequence[int]) -> bool:
        """Whether every rank holds a piece of the same shape."""
        return all(shape[dim] % prod(mesh_sizes[i] for i in self.sharding(dim)) == 0 for dim in range(len(shape)))

    def is_plain(self, shape: Sequence[int], mesh_sizes: Sequence[int]) -> bool:
        """Whether every dim is cut evenly, or by one axis alone."""
        cut = ((shape[dim], self.sharding(dim)) for dim in range(len(shape)))
        return all(len(axes) < 2 or length % prod(mesh_sizes[i] for i in axes) == 0 for length, axes in cut)

    def placements(self) -> tuple[Placement, ...]:
        """As DTensor placements, which know the value only: R and I are both `Replicate`."""
        from torch.distributed.tensor import Partial, Replicate, Shard

        return tuple(
            Shard(state.dim) if state.dim is not None else Partial() if state.kind == "P" else Replicate()
            for state in self.states
        )

    def check(self, shape: Sequence[int], mesh_sizes: Sequence[int]) -> None:
        """Raise LayoutError unless this layout fits a tensor of this shape on a mesh of these sizes."""
        if len(self.states) != len(mesh_sizes):
            raise LayoutError(
                f"layout {self} on a mesh of sizes {tuple(mesh_sizes)}", f"{len(mesh_sizes)} states, one per axis"
            )
        for state in self.states:
            if state.dim is not None and not 0 <= state.dim < len(shape):
                raise LayoutError(
                    f"layout {self} shards dim {state.dim} of a tensor of shape {tuple(shape)}",
                    f"a dim from 0 to {len(shape) - 1}" if shape else "no S on a tensor without dims",
                )


def chunk_length(length: int, pieces: int, index: int) -> int:
    """Length of piece `index` when `torch.chunk` (and DTensor) cuts `length` into `pieces`."""
    width = -(-length // pieces)
    return max(0, min(width, length - index * width))


def all_states(n_dims: int) -> tuple[State, ...]:
    """Every state an axis may have for a tensor of `n_dims` dims."""
    return (*(S(dim) for dim in range(n_dims)), P, R, I)


@CACHES.memoized()
def all_layouts(n_dims: int, n_axes: int) -> tuple[Layout, ...]:
    """Every layout of a tensor of `n_dims` dims on a mesh of `n_axes` axes."""
    return tuple(Layout(states) for states in product(all_states(n_dims), repeat=n_axes))


@CACHES.memoized(maxsize=4096)
def _parsed(text: str) -> Layout:
    body = text.strip()
    if not (body.startswith("[") and body.endswith("]")):
        raise LayoutError(f"layout {text!r}", "text such as [S(0), R]")
    parts = [part.strip() for part in body[1:-1].split(",")] if body[1:-1].strip() else []
    return Layout(tuple(_parse_state(part, text) for part in parts))


def _parse_state(part: str, text: str) -> State:
    match = _STATE.fullmatch(part)
    if match is None:
        raise LayoutError(f"state {part!r} in layout {text!r}", "S(dim), P, R or I")
    return S(int(match[1])) if match[1] is not None else {"P": P, "R": R, "I": I}[match[2]]
