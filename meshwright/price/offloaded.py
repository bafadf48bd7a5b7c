"""The parameters that are offloaded where only a part of them is: the same in segments of one graph."""

from __future__ import annotations

from meshwright.capture.program import ITEM_BYTES, Program


def offloaded_names(program: Program, fraction: float) -> frozenset[str] | None:
    """Parameters with about this fraction of all bytes; None for all.

    A parameter of a graph is offloaded in all its segments or in none, so that planning does not grow with depth.
    Parameters are taken in order as long as that comes nearer to the fraction.
    """
    if fraction >= 1:
        return None
    places: dict[tuple[int, int], list[str]] = {}
    seen: set[str] = set()
    for segment in program.segments:
        for place, name in enumerate(segment.params):
            if name not in seen:
                seen.add(name)
                places.setdefault((segment.graph, place), []).append(name)
    sizes = {parameter.name: _bytes(parameter.type.sizes, parameter.type.dtype) for parameter in program.parameters}
    wanted, taken, found = fraction * sum(sizes.values()), 0, set[str]()
    for names in places.values():
        size = sum(sizes[name] for name in names)
        if taken + size / 2 <= wanted:
            taken += size
            found.update(names)
    return frozenset(found)


def _bytes(sizes: tuple[int, ...], dtype: str) -> int:
    found = ITEM_BYTES[dtype]
    for size in sizes:
        found *= size
    return found
