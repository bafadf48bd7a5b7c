"""Rematerialisation of a sharded segment by its ops, a quick stand-in for the frontier of its traced pair.

Storages are those that `price.segment.resident_bytes` counts. An op that is rerun restores its results and pays its
collectives again. A minimum cut at a price per byte gives one point of the frontier. Chosen plans are refined on
traced pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.capture.program import SegmentGraph
from meshwright.cluster import Mesh
from meshwright.cost.op.compute import op_seconds
from meshwright.cost.op.fused import fused_shares
from meshwright.layout import Layout
from meshwright.plan import Choice
from meshwright.price.flow import Flow, canonical, flow
from meshwright.price.parameter import local_bytes
from meshwright.price.segment import collectives_s, held_anyway, kept_values, kernels, shards, storage_bases
from meshwright.profile import is_view, saved
from meshwright.remat.recompute import PICO, Recomputation, Rerun, Storage, cheapest

Key = tuple[str, Layout | None]


@dataclass(frozen=True, slots=True)
class RematLevel:
    """One point: bytes kept from forward to backward, and the seconds of recomputation in backward."""

    resident_bytes: int
    recompute_s: float


def remat_levels(
    graph: SegmentGraph, choice: Choice, mesh: Mesh, prices: Sequence[float], compiled: bool = False
) -> list[RematLevel]:
    """The cheapest point at each price, in seconds of one micro-batch per byte. Rising prices keep less and less."""
    problem = _ProblemBuilder(flow(graph, choice, mesh), compiled).problem()
    found = []
    for price in prices:
        scale = 10**6
        answer = cheapest(problem, scale, max(1, round(price * PICO * scale)))
        found.append(RematLevel(answer.bytes, answer.seconds))
    return found


class _ProblemBuilder:
    """The recomputation problem of a flow. A storage is the base of a value in one layout, or an op's auxiliary."""

    def __init__(self, found: Flow, compiled: bool) -> None:
        self.flow, self.values = found, found.graph.values()
        self.shares = fused_shares(found.graph) if compiled else {}
        self.bases = storage_bases(found.graph)
        self.free = held_anyway(found.graph)
        self.index: dict[Key, int] = {}
        self.storages: list[Storage] = []
        self.reruns: list[Rerun] = []
        self.read: set[int] = set()

    def problem(self) -> Recomputation:
        for op in self.flow.graph.ops:
            made = self.flow.strategies[op.name]
            wants = [
                self._wanted(name, canonical(layout, self.values[name].grad))
                for name, layout in zip(op.operands(), made.operands, strict=True)
            ]
            if is_view(op) and op.operands():
                rerun = self._rerun(0.0, wants[:1])
            else:
                mesh, share = self.flow.mesh, self.shares.get(op.name, 1.0)
                seconds = op_seconds(op, made, self.values, mesh.device, share)
                rerun_s = seconds.forward_s + collectives_s(made.collectives_forward, mesh)
                rerun = self._rerun(rerun_s, wants)
            for value, layout in zip(op.results, made.results, strict=True):
                self._storage(value.name, canonical(layout, value.grad), rerun)
            if any(value.grad for value in op.results):
                self._backward(op, made, rerun)
        return Recomputation(tuple(self.storages), tuple(self.reruns), frozenset(self.read))

    def _backward(self, op: object, made: object, rerun: int) -> None:
        mesh = self.flow.mesh
        auxiliary = saved(op, self.values, kernels(mesh)).auxiliary_bytes // shards(made, mesh)  # type: ignore[arg-type]
        if auxiliary:
            self.read.add(self._add((op.name, None), auxiliary, rerun))  # type: ignore[attr-defined]
        for name, layout in kept_values(op, made, self.values, self.free, mesh):  # type: ignore[arg-type]
            self.read.add(self._wanted(name, canonical(layout, self.values[name].grad)))

    def _wanted(self, name: str, layout: Layout) -> int:
        """The storage of a value in a layout, converted from the layout it is made in where the two differ."""
        key = (self.bases[name], layout)
        if key in self.index:
            return self.index[key]
        source = self.flow.layouts[name]
        origin = self._storage(name, source, None)
        if source == layout:
            return origin
        moved = self.flow.moves.get((name, layout))
        return self._storage(name, layout, self._rerun(moved.conversion.forward_s if moved else 0.0, [origin]))

    def _storage(self, name: str, layout: Layout, rerun: int | None) -> int:
        key = (self.bases[name], layout)
        if key in self.index:
            return self.index[key]
        value = self.values[name]
        size = 0 if name in self.free else local_bytes(value.type.sizes, value.type.itemsize, layout, self.flow.mesh)
        return self._add(key, size, rerun)

    def _add(self, key: Key, size: int, rerun: int | None) -> int:
        self.index[key] = len(self.storages)
        self.storages.append(Storage(key[0], size, rerun))
        return self.index[key]

    def _rerun(self, seconds: float, reads: list[int]) -> int:
        self.reruns.append(Rerun(round(seconds * PICO), tuple(dict.fromkeys(reads))))
        return len(self.reruns) - 1
