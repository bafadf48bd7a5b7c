"""The peak of a compiled graph, kernel by kernel.

What a compiler fuses away is never memory; but ops that read the same storage and need not wait for each other become
one kernel, so that all they read and write is there at once. An elementwise op writes over what it alone still reads,
and so does a softmax of short rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from torch import fx

from meshwright.cost.traced.fusible import ELEMENTWISE, is_fusible, readers
from meshwright.cost.traced.kernels import kernel_numbers, one_kernel
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import base, left_bytes, made_by, producer, storage_bytes

SOFTMAX_ROWS = {
    **dict.fromkeys(("aten._softmax.default", "aten._safe_softmax.default"), 1024),
    "aten._softmax_backward_data.default": 2048,
}
"""The longest rows that a compiled softmax, and its gradient, hold in registers: rows of 992 and 2048 were seen so on
an H200 with torch 2.11, of 2048 and 6000 not."""


@dataclass(slots=True)
class Kernel:
    """makes: storages that it writes. early: those that it writes too, counted since an earlier kernel. reads: those it
    needs, whoever wrote them. working: bytes besides."""

    makes: list[fx.Node] = field(default_factory=list)
    early: list[fx.Node] = field(default_factory=list)
    reads: set[fx.Node] = field(default_factory=set)
    working: int = 0


def compiled_peak(
    module: fx.GraphModule,
    given: Collection[fx.Node],
    results: Collection[fx.Node],
    stay: Collection[fx.Node],
    costs: NodeCosts,
) -> tuple[int, int]:
    """(the most bytes in use at a time, bytes in use at the end). given: storages that are there at the start; stay:
    those that are never let go of."""
    kernels = _kernels(module, costs, results)
    sizes = {one: storage_bytes(one) for one in [*given, *(one for kernel in kernels for one in kernel.makes)]}
    left = dict.fromkeys(sizes, 0)
    for kernel in kernels:
        for storage in kernel.reads & left.keys():
            left[storage] += 1

    def size(storages: Iterable[fx.Node]) -> int:
        return sum(sizes[one] for one in storages)

    def ended(storages: Iterable[fx.Node]) -> set[fx.Node]:
        return {one for one in storages if left.get(one) == 0 and one not in stay}

    most = size(given)
    live = most - size(ended(given))
    for kernel in kernels:
        for storage in kernel.reads & left.keys():
            left[storage] -= 1
        gone = ended(kernel.reads)
        over = _written_over(kernel, gone.difference(given), costs)
        live += size(kernel.makes) - size(over)
        most = max(most, live + kernel.working)
        live -= size((gone - over) | ended(kernel.makes))
    return most, live


def _written_over(kernel: Kernel, ending: Collection[fx.Node], costs: NodeCosts) -> set[fx.Node]:
    """Of what ends in a kernel, what it writes over: as large as a result, of its dtype, read by no other op of the
    kernel."""
    found: set[fx.Node] = set()
    everything = {*kernel.makes, *kernel.early}
    for made in kernel.makes:
        if not _may_write_over(made):
            continue
        for storage in ending:
            alike = storage_bytes(storage) == storage_bytes(made) and _dtype(storage) == _dtype(made)
            alone = alike and storage not in found
            if alone and everything.intersection(_writers(storage, costs)) == {made}:
                found.add(storage)
                break
    return found


def _may_write_over(made: fx.Node) -> bool:
    """Whether each number of a result is written after the last look at that number of what it is made of."""
    rows = SOFTMAX_ROWS.get(str(made.target), 0)
    return ELEMENTWISE in getattr(made.target, "tags", ()) or made.meta["val"].shape[-1:].numel() <= rows


def _dtype(storage: fx.Node) -> object:
    return storage.meta["val"].dtype


def _writers(storage: fx.Node, costs: NodeCosts) -> Iterable[fx.Node]:
    """The ops that read it and write something: those between compute in registers."""
    for reader in readers(storage):
        if costs.is_written(reader):
            yield reader
        else:
            yield from _writers(reader, costs)


def _kernels(module: fx.GraphModule, costs: NodeCosts, results: Collection[fx.Node]) -> list[Kernel]:
    """In the order they were written. What is never written is computed wherever it is read."""
    order = kernel_numbers(module)
    reads: dict[fx.Node, set[fx.Node]] = {}
    found: dict[int, Kernel] = {}
    for node in order:
        if node.op != "call_function":
            continue
        reads[node] = {one for other in node.all_input_nodes for one in _stored(other, costs, results, reads)}
        made = [one for one in made_by(node) if _is_memory(one, costs, results)]
        if made or not is_fusible(node):
            kernel = found.setdefault(order[node], Kernel())
            kernel.makes += made
            kernel.reads |= reads[node]
            kernel.working = max(kernel.working, costs.working_bytes(node) + left_bytes(node))
    for earlier, later in one_kernel(module):
        if order[earlier] in found and order[later] in found:
            found[order[later]].reads |= {base(earlier), *reads[earlier]}
            if order[earlier] != order[later]:
                found[order[later]].early.append(earlier)
    return [kernel for _, kernel in sorted(found.items())]


def _stored(
    node: fx.Node, costs: NodeCosts, results: Collection[fx.Node], reads: dict[fx.Node, set[fx.Node]]
) -> Iterable[fx.Node]:
    """The memory that a value is read from: its own, or what it is computed from where it is never written."""
    storage = base(node)
    if storage.op != "call_function" or _is_memory(storage, costs, results):
        return (storage,)
    return reads[producer(storage)]


def _is_memory(storage: fx.Node, costs: NodeCosts, results: Collection[fx.Node]) -> bool:
    """One of the results of a fused op is written where somebody else reads that one."""
    return storage in results or not is_fusible(producer(storage)) or costs.is_written(storage)
