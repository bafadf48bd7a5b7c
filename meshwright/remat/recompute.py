"""Keep or compute again: the exact minimum over all sets of kept storages of one segment, for any price per byte.

With x_v = 1 where backward needs storage v, and y_o = 1 where op o runs again in backward,

    minimise   sum_o seconds_o y_o  +  price * sum_v bytes_v x_v (1 - y_op(v))
    subject to x_v = 1 for what the gradients read,   y_o <= x_u for everything u that o reads

A storage that is needed and not recomputed is kept: the second sum. Each term is a unary cost or one on a pair (1, 0),
so the minimum is a minimum cut (`cheapest`): source -> x_v where the gradients read v; x_v -> y_op(v) of price * bytes;
y_o -> sink of seconds_o; y_o -> x_u without limit. An op with several results restores all of them for one run.
`frontier` asks at the slopes between neighbours until no point lies below the line: the lower convex hull, exactly.
Seconds are whole picoseconds here, so that all sums are exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from meshwright.errors import VerifyError
from meshwright.remat.flow import Network

PICO = 10**12


@dataclass(frozen=True, slots=True)
class Storage:
    """made_by: the op that recomputes it; None where none can, as for inputs and random masks.
    keepable: False where it is written to later.
    """

    name: str
    bytes: int
    made_by: int | None = None
    keepable: bool = True


@dataclass(frozen=True, slots=True)
class Rerun:
    """An op that may be recomputed. reads: indices of storages."""

    picoseconds: int
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recomputation:
    """read: indices of the storages that gradients read."""

    storages: tuple[Storage, ...]
    ops: tuple[Rerun, ...]
    read: frozenset[int]

    def verify(self) -> None:
        for storage in self.storages:
            if not storage.keepable and storage.made_by is None:
                raise VerifyError(f"storage {storage.name} can be neither kept nor made", "one of the two")


@dataclass(frozen=True, slots=True)
class Answer:
    """Kept storages as indices, their bytes, and picoseconds of recomputation."""

    kept: frozenset[int]
    bytes: int
    picoseconds: int

    @property
    def seconds(self) -> float:
        return self.picoseconds / PICO


def evaluate(problem: Recomputation, kept: Collection[int]) -> Answer | None:
    """The cost of keeping at most these storages; None where a needed one can neither be kept nor recomputed."""
    needed, runs = set[int](), set[int]()
    queue = list(problem.read)
    while queue:
        index = queue.pop()
        if index in needed:
            continue
        needed.add(index)
        storage = problem.storages[index]
        if index in kept and storage.keepable:
            continue
        if storage.made_by is None:
            return None
        if storage.made_by not in runs:
            runs.add(storage.made_by)
            queue.extend(problem.ops[storage.made_by].reads)
    held = {i for i in needed if i in kept and problem.storages[i].made_by not in runs}
    return Answer(
        frozenset(held),
        sum(problem.storages[i].bytes for i in held),
        sum(problem.ops[o].picoseconds for o in runs),
    )


def cheapest(problem: Recomputation, per_picosecond: int, per_byte: int) -> Answer:
    """The minimum of per_picosecond * picoseconds + per_byte * bytes; of equals the one that recomputes least."""
    count = len(problem.storages)
    source, sink = count + len(problem.ops), count + len(problem.ops) + 1
    network = Network(sink + 1)
    endless = 1 + per_picosecond * sum(op.picoseconds for op in problem.ops)
    endless += per_byte * sum(storage.bytes for storage in problem.storages)
    for index, storage in enumerate(problem.storages):
        if index in problem.read:
            network.add(source, index, endless)
        maker = sink if storage.made_by is None else count + storage.made_by
        network.add(index, maker, per_byte * storage.bytes if storage.keepable else endless)
    for index, op in enumerate(problem.ops):
        network.add(count + index, sink, per_picosecond * op.picoseconds)
        for read in op.reads:
            network.add(count + index, read, endless)
    reached = network.minimum_cut(source, sink)
    runs = {index for index in range(len(problem.ops)) if count + index in reached}
    kept = {i for i, storage in enumerate(problem.storages) if i in reached and storage.made_by not in runs}
    found = evaluate(problem, kept)
    assert found is not None, "what can be made by nothing is kept"
    return found


def fastest(problem: Recomputation) -> Answer:
    """The fewest bytes at the least seconds."""
    return cheapest(problem, 1 + sum(storage.bytes for storage in problem.storages), 1)


def frontier(problem: Recomputation) -> tuple[Answer, ...]:
    """The lower convex hull of (bytes, picoseconds), from most bytes to fewest."""
    longest = 1 + sum(op.picoseconds for op in problem.ops)
    most, smallest = fastest(problem), cheapest(problem, 1, longest)
    return (most, *_between(problem, most, smallest))


def _between(problem: Recomputation, left: Answer, right: Answer) -> Iterator[Answer]:
    """The points of the hull after `left`, up to `right`."""
    if right.bytes >= left.bytes:
        return
    per_picosecond, per_byte = left.bytes - right.bytes, right.picoseconds - left.picoseconds
    found = cheapest(problem, per_picosecond, per_byte)
    line = per_picosecond * left.picoseconds + per_byte * left.bytes
    if per_picosecond * found.picoseconds + per_byte * found.bytes < line:
        yield from _between(problem, left, found)
        yield from _between(problem, found, right)
    else:
        yield right
