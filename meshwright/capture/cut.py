"""Where a flat program may be cut, and which ops belong to no segment of their own.

A natural cut is a position at which exactly one value derived from a parameter is alive, and that value is a
float with a gradient. Ops that depend on no parameter are set aside (*common*); they are placed afterwards,
in the one segment that reads them or, if several do, in the prologue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.capture.program import Op
from meshwright.capture.read import Flat


def split_common(flat: Flat) -> tuple[list[Op], list[Op]]:
    """(ops derived from a parameter or buffer, common ops), each in program order."""
    derived = {entry.name for entry in (*flat.parameters, *flat.buffers)}
    chain, common = [], []
    for op in flat.ops:
        if any(name in derived for name in op.uses()):
            derived.update(value.name for value in op.results)
            chain.append(op)
        else:
            common.append(op)
    return chain, common


def natural_cuts(chain: Sequence[Op]) -> list[int]:
    """Positions i such that the program may be cut between chain[i - 1] and chain[i]."""
    last_use: dict[str, int] = {}
    for index, op in enumerate(chain):
        for name in op.uses():
            last_use[name] = index
    cuts, alive = [], dict[str, bool]()
    for index, op in enumerate(chain):
        for value in op.results:
            if last_use.get(value.name, -1) > index:
                alive[value.name] = value.grad
        alive = {name: grad for name, grad in alive.items() if last_use[name] > index}
        if index + 1 < len(chain) and len(alive) == 1 and all(alive.values()):
            cuts.append(index + 1)
    return cuts


def pieces(chain: Sequence[Op], cuts: Sequence[int]) -> list[tuple[Op, ...]]:
    """The chain between neighbouring cuts."""
    edges = [0, *cuts, len(chain)]
    return [tuple(chain[start:end]) for start, end in pairwise(edges)]
