"""The peak of a compiled graph, kernel by kernel, in the order that its compiler would choose.

Inductor runs kernels in the order they were written, or by "least peak memory first", whichever it expects to need
less: of those that are ready, one that fits under the peak so far and frees most; else the one that makes least. It
takes a graph's arguments to stay, though they go after their last use. An elementwise op writes over what it alone
still reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch import fx

from meshwright.cost.traced.fusible import ELEMENTWISE, readers
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import storage_bytes


@dataclass(slots=True)
class Kernel:
    """makes: storages that it writes. reads: those it needs, whoever wrote them. working: bytes besides."""

    makes: list[fx.Node] = field(default_factory=list)
    reads: set[fx.Node] = field(default_factory=set)
    working: int = 0


class KernelMemory:
    """given: storages that are there at the start. stay: those that are never let go of."""

    def __init__(
        self, kernels: Sequence[Kernel], given: Collection[fx.Node], stay: Collection[fx.Node], costs: NodeCosts
    ) -> None:
        self.kernels, self.given, self.stay, self.fixed = kernels, given, stay, {*given, *stay}
        self.sizes = {one: storage_bytes(one) for one in [*given, *(one for k in kernels for one in k.makes)]}
        self.start = sum(self.sizes[one] for one in given)
        self.readers: dict[fx.Node, set[int]] = {one: set() for one in self.sizes}
        for number, kernel in enumerate(kernels):
            for storage in kernel.reads & self.sizes.keys():
                self.readers[storage].add(number)
        self.over = [self._written_over(kernel, costs) for kernel in kernels]

    def peak(self) -> tuple[int, int]:
        """(the most bytes in use at a time, bytes in use at the end)."""
        orders = list(range(len(self.kernels))), self._least_peak_first()
        return min((self._played(order, expected=True)[0], self._played(order)) for order in orders)[1]

    def _played(self, order: Iterable[int], expected: bool = False) -> tuple[int, int]:
        """expected: as the compiler counts when it chooses an order."""
        live = most = self.start
        left = {storage: len(found) for storage, found in self.readers.items()}

        stay = self.fixed if expected else self.stay

        def ended(storages: Iterable[fx.Node]) -> set[fx.Node]:
            return {one for one in storages if left.get(one) == 0 and one not in stay}

        live -= sum(self.sizes[one] for one in ended(self.given))
        for number in order:
            kernel = self.kernels[number]
            for storage in kernel.reads & left.keys():
                left[storage] -= 1
            gone = ended(kernel.reads)
            over = set() if expected else gone.intersection(self.over[number])
            live += sum(self.sizes[one] for one in kernel.makes) - sum(self.sizes[one] for one in over)
            most = max(most, live + kernel.working)
            live -= sum(self.sizes[one] for one in (gone - over) | ended(kernel.makes))
        return most, live

    def _least_peak_first(self) -> list[int]:
        made_by = {one: number for number, kernel in enumerate(self.kernels) for one in kernel.makes}
        waits = [
            {made_by[one] for one in kernel.reads if made_by.get(one, number) < number}
            for number, kernel in enumerate(self.kernels)
        ]
        follows: list[list[int]] = [[] for _ in self.kernels]
        for number, before in enumerate(waits):
            for one in before:
                follows[one].append(number)
        sizes = [sum(self.sizes[one] for one in kernel.makes) for kernel in self.kernels]
        left = {storage: set(found) for storage, found in self.readers.items() if storage not in self.fixed}
        ready = [number for number, before in enumerate(waits) if not before]
        live = most = self.start
        order: list[int] = []
        while ready:
            gap = most - live
            frees = {
                number: sum(self.sizes[one] for one in self.kernels[number].reads if left.get(one) == {number})
                for number in ready
            }
            chosen = min(ready, key=lambda n: (sizes[n] if sizes[n] > gap else 0, sizes[n] - frees[n], n))
            ready.remove(chosen)
            order.append(chosen)
            most = max(most, live + sizes[chosen])
            live += sizes[chosen] - frees[chosen]
            for storage in self.kernels[chosen].reads & left.keys():
                left[storage].discard(chosen)
            for one in follows[chosen]:
                waits[one].discard(chosen)
                if not waits[one]:
                    ready.append(one)
        return order

    def _written_over(self, kernel: Kernel, costs: NodeCosts) -> list[fx.Node]:
        """What may be written over: as large as an elementwise result, of its dtype, made in this graph, read by no
        other op of the kernel."""
        found: list[fx.Node] = []
        for made in kernel.makes:
            if ELEMENTWISE not in getattr(made.target, "tags", ()):
                continue
            for storage in kernel.reads.intersection(self.sizes).difference(self.given, found):
                alike = self.sizes[storage] == self.sizes[made] and _dtype(storage) == _dtype(made)
                if alike and set(_writers(storage, costs)).intersection(kernel.makes) == {made}:
                    found.append(storage)
                    break
        return found


def _dtype(storage: fx.Node) -> object:
    return storage.meta["val"].dtype


def _writers(storage: fx.Node, costs: NodeCosts) -> Iterable[fx.Node]:
    """The ops that read it and write something: those between compute in registers."""
    for reader in readers(storage):
        if costs.is_written(reader):
            yield reader
        else:
            yield from _writers(reader, costs)
