"""The peak of a compiled graph, kernel by kernel. An elementwise op writes over what it alone still reads."""

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
        self.kernels, self.given, self.stay, self.costs = kernels, given, stay, costs
        self.sizes = {one: storage_bytes(one) for one in [*given, *(one for k in kernels for one in k.makes)]}
        self.start = sum(self.sizes[one] for one in given)
        self.readers = dict.fromkeys(self.sizes, 0)
        for kernel in kernels:
            for storage in kernel.reads & self.sizes.keys():
                self.readers[storage] += 1

    def peak(self) -> tuple[int, int]:
        """(the most bytes in use at a time, bytes in use at the end)."""
        live = most = self.start
        left = dict(self.readers)

        def ended(storages: Iterable[fx.Node]) -> set[fx.Node]:
            return {one for one in storages if left.get(one) == 0 and one not in self.stay}

        live -= sum(self.sizes[one] for one in ended(self.given))
        for kernel in self.kernels:
            for storage in kernel.reads & left.keys():
                left[storage] -= 1
            gone = ended(kernel.reads)
            over = gone.intersection(self._written_over(kernel))
            live += sum(self.sizes[one] for one in kernel.makes) - sum(self.sizes[one] for one in over)
            most = max(most, live + kernel.working)
            live -= sum(self.sizes[one] for one in (gone - over) | ended(kernel.makes))
        return most, live

    def _written_over(self, kernel: Kernel) -> list[fx.Node]:
        """What may be written over: as large as an elementwise result, of its dtype, made in this graph, read by no
        other op of the kernel."""
        found: list[fx.Node] = []
        for made in kernel.makes:
            if ELEMENTWISE not in getattr(made.target, "tags", ()):
                continue
            for storage in kernel.reads.intersection(self.sizes).difference(self.given, found):
                alike = self.sizes[storage] == self.sizes[made] and _dtype(storage) == _dtype(made)
                if alike and set(_writers(storage, self.costs)).intersection(kernel.makes) == {made}:
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
