"""What the tensors that backward reads cost: their bytes, or the seconds of recomputing them, of each op.

To recompute a tensor is to run its producer again, and the producers of what that one reads, unless their results are
kept. In Llama the product of queries runs again behind their rotary embedding, and attention's last product behind the
sum that the second norm reads. Every op's seconds are charged to one tensor at most, so that the sum over tensors is a
lower bound:

    charge(l) = min(l bytes, own seconds + min(seconds behind, l bytes behind))        at l seconds per byte

An op that makes no saved tensor passes its seconds, with those it was passed, on to one reader of its result; they end
at an op that makes one. If that tensor is recomputed, each op on the way runs again, or a result on the way is kept. So
what passes through a result of b bytes is worth at most l b: `behind_bytes` is the most that all of them allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshwright.capture.program import Op, SegmentGraph, Value
from meshwright.cluster import Mesh
from meshwright.price.parameter import local_bytes
from meshwright.price.segment import kept_values, kernels, shards
from meshwright.profile import is_view, saved
from meshwright.profile.operands import type_bytes
from meshwright.rules import Strategy

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SavedTensorCost:
    """A tensor that an op's backward reads, or an op's share of it.

    bytes: under each strategy of the op.
    drop_s: lower bound on the seconds of its producer, per micro-batch; infinite where it comes from outside the
        segment.
    behind_s: the same of the ops behind its producer that are charged to it.
    behind_bytes: to keep their results instead takes at least so many.
    """

    bytes: Matrix
    drop_s: float
    behind_s: float = 0.0
    behind_bytes: float = 0.0

    def charge_s(self, seconds_per_byte: float | Matrix, microbatches: int) -> Matrix:
        """Lower bound on the seconds of a step for keeping or recomputing it, under each strategy.

        seconds_per_byte: of all micro-batches that hold it at a time; a column of them gives a row for each.
        """
        behind_s = np.minimum(microbatches * self.behind_s, seconds_per_byte * self.behind_bytes)
        found: Matrix = np.minimum(seconds_per_byte * self.bytes, microbatches * self.drop_s + behind_s)
        return found


class Ops(Protocol):
    """The parts of a `Space` that are read."""

    @property
    def graph(self) -> SegmentGraph: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def values(self) -> dict[str, Value]: ...
    @property
    def strategies(self) -> tuple[tuple[Strategy, ...], ...]: ...
    @property
    def bases(self) -> dict[str, str]: ...
    @property
    def outside(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class _Again:
    """What recomputing a storage takes: as the fields of `SavedTensorCost`."""

    drop_s: float
    behind_s: float
    behind_bytes: float

    def part(self, share: float) -> _Again:
        return _Again(share * self.drop_s, share * self.behind_s, share * self.behind_bytes)


def saved_tensor_costs(space: Ops, forward_s: Sequence[float]) -> list[tuple[SavedTensorCost, ...]]:
    """Of each op. forward_s: of each op, a lower bound on the seconds of its forward.

    An op that runs again restores all its results: its seconds are split between those that are saved, by their bytes.
    A function of several ops may run only the cheapest of them again. The segment that ends in the loss may run forward
    and backward in chunks, which hold little and recompute nothing. So what they save is free.
    """
    saving = _saving_ops(space)
    behind = _behind(space, saving, forward_s)
    again: dict[str, _Again] = {}
    is_tail = not any(space.values[name].type.sizes for name in space.graph.outputs)
    for index, op in enumerate(space.graph.ops):
        sizes = {value.name: type_bytes(value.type) for value in op.results if value.name in saving}
        sizes |= {_hidden(op): _hidden_bytes(space, op)}
        for name, size in sizes.items():
            share = 0.0 if ":" in op.target or is_tail else size / max(1, sum(sizes.values()))
            again[name] = _Again(forward_s[index], *behind[index]).part(share)
    return [tuple(_of_op(space, index, saving, again)) for index in range(len(space.graph.ops))]


def _of_op(space: Ops, index: int, saving: dict[str, int], again: dict[str, _Again]) -> Iterator[SavedTensorCost]:
    """This op's share of saved tensors. A storage that several ops save is split between them, so that the sum over ops
    is never more than the bytes held."""
    op = space.graph.ops[index]
    if not any(value.grad for value in op.results):
        return
    mesh, values, found = space.mesh, space.values, space.strategies[index]
    reads = saved(op, values, kernels(mesh))
    if reads.auxiliary_bytes:
        sizes = [float(reads.auxiliary_bytes // shards(made, mesh)) for made in found]
        one = again[_hidden(op)]
        yield SavedTensorCost(np.array(sizes), one.drop_s, one.behind_s, one.behind_bytes)
    operands = op.operands()
    columns = [(operands[i], [made.operands[i] for made in found]) for i in reads.operands]
    columns += [(op.results[i].name, [made.results[i] for made in found]) for i in reads.results]
    for name, layouts in columns:
        value, base = values[name], space.bases[name]
        if base in space.outside:
            continue
        each = {layout: local_bytes(value.type.sizes, value.type.itemsize, layout, mesh) for layout in set(layouts)}
        sizes = [each[layout] / saving[base] for layout in layouts]
        one = again.get(base, _Again(np.inf, 0.0, 0.0)).part(1 / saving[base])  # or from outside
        yield SavedTensorCost(np.array(sizes), one.drop_s, one.behind_s, one.behind_bytes)


def _saving_ops(space: Ops) -> dict[str, int]:
    """The number of ops that save each storage."""
    counts: Counter[str] = Counter()
    for op, found in zip(space.graph.ops, space.strategies, strict=True):
        if any(value.grad for value in op.results):
            counts.update(
                space.bases[name] for name, _ in kept_values(op, found[0], space.values, space.outside, space.mesh)
            )
    return dict(counts)


def _behind(space: Ops, saving: Collection[str], forward_s: Sequence[float]) -> list[tuple[float, float]]:
    """What ends at each op: (seconds, the least bytes of keeping results on the way instead)."""
    ops, towards = space.graph.ops, _towards(space, saving)
    passed_s, rates = [0.0] * len(ops), [np.inf] * len(ops)
    for index, reader in enumerate(towards):
        if reader is None:
            continue
        own_s = 0.0 if _hidden_bytes(space, ops[index]) else forward_s[index]
        whole_s = own_s + passed_s[index]
        least = min(type_bytes(value.type) for value in ops[index].results) / space.mesh.world_size
        passed_s[reader] += whole_s
        rates[reader] = min(rates[reader], rates[index], least / whole_s if whole_s else np.inf)
    return [(s, rate * s if s else 0.0) for s, rate in zip(passed_s, rates, strict=True)]


def _towards(space: Ops, saving: Collection[str]) -> list[int | None]:
    """Of each op that makes no saved tensor, the reader of its result to which its seconds are passed, if any.

    None where results are smaller than what they end at: they may be kept for little.
    """
    graph, bases = space.graph, space.bases
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(graph.ops):
        for name in () if is_view(op) else op.operands():
            readers.setdefault(bases[name], []).append(index)
    needed = {bases[name] for name in (*graph.outputs, *(name for _, name in graph.updates))}
    towards: list[int | None] = [None] * len(graph.ops)
    ends: dict[int, int] = {}  # by op, the least bytes of the saved tensors at which its seconds end
    for index in reversed(range(len(graph.ops))):
        op = graph.ops[index]
        sizes = [type_bytes(value.type) for value in op.results]
        made = [size for value, size in zip(op.results, sizes, strict=True) if value.name in saving]
        if is_view(op) or ":" in op.target:
            continue
        if made:
            ends[index] = min(made)
        elif needed.isdisjoint(value.name for value in op.results):
            after = (reader for value in op.results for reader in readers.get(value.name, ()))
            towards[index] = next((one for one in after if one in ends and ends[one] <= min(sizes)), None)
            if (reader := towards[index]) is not None:
                ends[index] = ends[reader]
    return towards


def _hidden(op: Op) -> str:
    """The name of what an op keeps for its backward beside operands and results."""
    return f"hidden in {op.name}"


def _hidden_bytes(space: Ops, op: Op) -> int:
    return saved(op, space.values, kernels(space.mesh)).auxiliary_bytes
