"""Gradients that do not lie in order, and which ops copy them.

What was concatenated gets its gradient as a slice of a larger one. A sum hands it on as it is; convolutions, norms and
pooling put it in order first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from meshwright.capture.program import Op
from meshwright.profile.count import CONVOLUTIONS
from meshwright.profile.kept import literal
from meshwright.profile.operands import packet

_ORDERED = frozenset(
    {
        *CONVOLUTIONS,
        *("batch_norm", "instance_norm", "group_norm", "layer_norm"),
        *(f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)),
    }
)


class Made(NamedTuple):
    """An op that has a backward; its first result and its operands by their names in the whole program."""

    op: Op
    result: str
    operands: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]


def copied_gradients(made: Sequence[Made], readers: Mapping[str, int]) -> Iterator[str]:
    """Values whose gradient is copied into order; `made`: in the order of forward. Of a value that several ops read
    the gradients are added up, and the sum lies in order."""
    apart: set[str] = set()
    for one in reversed(made):
        name = packet(one.op.target)
        if one.result in apart and name in _ORDERED:
            yield one.result
        if _slices(name, one) or (name in ("add", "sub") and one.result in apart and len(set(one.sizes)) == 1):
            apart |= {operand for operand in one.operands if readers.get(operand, 0) == 1}


def _slices(name: str, one: Made) -> bool:
    """Whether a part of the result does not lie side by side in it."""
    if name not in ("cat", "concat") or not one.sizes:
        return False
    dim = literal(one.op, 1, "dim", 0)
    return isinstance(dim, int) and prod(one.sizes[0][: dim % max(1, len(one.sizes[0]))]) > 1
