"""The short cycles of a laid out problem, for `kernels.cycles`."""

from __future__ import annotations

import numpy as np

from meshwright.select.flatten import join, running
from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.cycles import Cycles
from meshwright.select.problem import Ints

# A neighbour of a node is paired with fewer than so many that follow it.
NEIGHBOURS = 12
# Table entries of all cycles. Those with the smallest tables are taken.
ENTRIES = 50_000_000
# Products of matrices fill this many entries in the time of an elementary step.
PRODUCTS_PER_STEP = 4.0


def own_tables(a: Arrays) -> Arrays:
    """The same problem where no two edges share a table, so that each can be changed."""
    sizes = a.kinds * a.kinds[a.back]
    parts = [a.mats[begin : begin + size] for begin, size in zip(a.mat.tolist(), sizes.tolist(), strict=True)]
    return a._replace(mats=join(parts), mat=running(sizes.tolist())[:-1])


def cycles(a: Arrays) -> Cycles | None:
    """Triangles and cycles of four edges; None when there are none."""
    short = _short_cycles(a)
    entries = np.array([_entries(a, links) for links in short], dtype=np.int64)
    order = np.argsort(entries, kind="stable")
    kept = np.sort(order[np.cumsum(entries[order]) <= ENTRIES])
    found = [_cheapest_start(a, short[c]) for c in kept.tolist()]
    if not found:
        return None
    places = [_joint(a, link, links[t - 1]) for links in found for t, link in enumerate(links)]
    link = np.concatenate(found)
    table = running((a.kinds[link] * a.kinds[a.back[link]]).tolist())
    return Cycles(
        start=running([len(links) for links in found]),
        link=link,
        first=running([len(ahead) for ahead, _ in places]),
        ahead=np.concatenate([ahead for ahead, _ in places]),
        behind=np.concatenate([behind for _, behind in places]),
        table=table[:-1],
        moved=np.zeros(table[-1]),
        work=np.array([_work(a, links) for links in found]),
    )


def _short_cycles(a: Arrays) -> list[list[int]]:
    """The links of a shortest cycle through each two edges at a node, where it has three or four edges."""
    near = [a.near[b:e].tolist() for b, e in zip(a.start[:-1].tolist(), a.start[1:].tolist(), strict=True)]
    link = {(i, j): int(a.start[i]) + k for i, others in enumerate(near) for k, j in enumerate(others)}
    sets = [set(others) for others in near]
    found: dict[frozenset[int], list[int]] = {}
    for i, others in enumerate(near):
        for low, j in enumerate(others):
            for k in others[low + 1 : low + NEIGHBOURS]:
                far = next((m for m in near[j] if m != i and m in sets[k]), None)
                if k in sets[j]:
                    ring = [i, j, k]
                elif far is not None:
                    ring = [i, j, far, k]
                else:
                    continue
                links = [link[p, q] for p, q in zip(ring, [*ring[1:], i], strict=True)]
                found.setdefault(frozenset(min(one, int(a.back[one])) for one in links), links)
    return list(found.values())


def _entries(a: Arrays, cycle: list[int]) -> int:
    return int((a.kinds[cycle] * a.kinds[a.back[cycle]]).sum())


def _joint(a: Arrays, link: int, before: int) -> tuple[Ints, Ints]:
    """The classes of options that `link` and the link `before` it tell apart at the node between them: the class of
    each as the one sees it and as the other does.
    """
    back = a.back[before]
    width = _width(a, link)
    ahead, behind = (a.classes[a.seen[each] : a.seen[each] + width] for each in (link, back))
    first, second = np.divmod(np.unique(ahead * width + behind), width)
    return first, second


def _width(a: Arrays, link: int) -> int:
    owner = a.near[a.back[link]]
    return int(a.offsets[owner + 1] - a.offsets[owner])


def _cheapest_start(a: Arrays, links: list[int]) -> list[int]:
    """The cycle from the place on from which a visit takes least."""
    return min((links[t:] + links[:t] for t in range(len(links))), key=lambda turned: _work(a, turned))


def _work(a: Arrays, links: list[int]) -> float:
    """Elementary steps of a visit: its products, and reading and writing its tables."""
    width = [float(_width(a, link)) for link in links]
    across = 1.0 if len(links) == 3 else 1.0 + width[3] / width[1]
    return 3.0 * width[0] * width[1] * width[2] * across / PRODUCTS_PER_STEP + 4.0 * _entries(a, links)
