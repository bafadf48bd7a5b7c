"""Chunk and recompute: the backward of an inner segment, one chunk of the samples after the other.

Forward runs whole and keeps what it was told to. Backward takes a part of it and of the incoming gradients at a time,
so that what is computed again, and the gradients on their way, are there for one chunk only. Gradients of inputs lie
side by side; those of parameters are summed, in single precision where they are narrower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from meshwright.capture.program import Program, SegmentGraph
from meshwright.cost.traced.storage import outputs_of
from meshwright.errors import PlanError
from meshwright.generate.chunk import NARROW
from meshwright.generate.pair import SegmentPair
from meshwright.generate.split import Halves


@dataclass(frozen=True, slots=True)
class ChunkedBackward:
    """Runs like a SegmentPair. whole: forward; part: backward of one chunk. sliced: per placeholder of backward
    (what is saved, then the gradients), whether it is cut; placed: likewise per input gradient."""

    whole: SegmentPair
    part: SegmentPair
    chunks: int
    sliced: Mapping[str, bool]
    placed: tuple[bool, ...]

    @property
    def graph(self) -> SegmentGraph:
        return self.whole.graph

    @property
    def grad_inputs(self) -> tuple[str, ...]:
        return self.whole.grad_inputs

    @property
    def grad_params(self) -> tuple[str, ...]:
        return self.whole.grad_params

    @property
    def saved(self) -> tuple[str, ...]:
        return self.whole.saved

    def forward(self, arguments: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        return self.whole.forward(arguments)

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """As a SegmentPair's; what is saved goes with the last chunk."""
        names = self.whole.halves.saved
        inputs: dict[str, Tensor | None] = dict.fromkeys(self.grad_inputs)
        sums: dict[str, Tensor | None] = dict.fromkeys(self.grad_params)
        for index in range(self.chunks):
            box = [self._piece(name, tensor, index) for name, tensor in zip(names, saved, strict=True)]
            incoming = [self._piece(f"gradient_{i}", tensor, index) for i, tensor in enumerate(gradients)]
            if index == self.chunks - 1 and isinstance(saved, list):
                saved.clear()
            found, of_params = self.part.backward(box, params, incoming)
            for name, placed in zip(self.grad_inputs, self.placed, strict=True):
                inputs[name] = self._collected(inputs[name], found.pop(name), index, placed)
            for name in self.grad_params:
                sums[name] = _added(sums[name], of_params.pop(name))
        for name in self.grad_params:
            made = sums.pop(name)
            sums[name] = None if made is None else made.to(params[name].dtype)
        return inputs, sums

    def _piece(self, name: str, tensor: Tensor, index: int) -> Tensor:
        if not self.sliced[name]:
            return tensor
        length = tensor.shape[0] // self.chunks
        return tensor.narrow(0, index * length, length)

    def _collected(self, whole: Tensor | None, found: Tensor | None, index: int, placed: bool) -> Tensor | None:
        if found is None or not placed:
            return found if whole is None or found is None else whole.add_(found)
        length = found.shape[0]
        if whole is None:
            whole = found.new_empty((length * self.chunks, *found.shape[1:]))
        whole.narrow(0, index * length, length).copy_(found)
        return whole


def _added(total: Tensor | None, found: Tensor | None) -> Tensor | None:
    if found is None:
        return total
    if total is None:
        return found.float() if found.dtype in NARROW else found.clone()
    return total.add_(found)


def chunked_backward(whole: SegmentPair, part: SegmentPair, chunks: int) -> ChunkedBackward:
    """`part`: the pair of the same segment at batch / chunks. Raises PlanError where the batch does not cut it."""
    sliced, placed = slices(whole.halves, part.halves, len(whole.grad_inputs), chunks)
    return ChunkedBackward(whole, part, chunks, sliced, placed)


def slices(whole: Halves, part: Halves, inputs: int, chunks: int) -> tuple[dict[str, bool], tuple[bool, ...]]:
    """Which arguments of backward, and which of its input gradients, are cut along their first dim."""
    found = {}
    of_part = {node.name: node for node in part.second.graph.nodes if node.op == "placeholder"}
    names = [node for node in whole.second.graph.nodes if node.op == "placeholder"]
    if [node.name for node in names] != list(of_part):
        raise PlanError(f"{chunks} chunks of a layer that reads other values then", "the same", "plan without chunks")
    for node in names:
        found[node.name] = _is_cut(node, of_part[node.name], chunks)
    pairs = zip(outputs_of(whole.second)[:inputs], outputs_of(part.second)[:inputs], strict=True)
    placed = [
        isinstance(one, fx.Node) and isinstance(other, fx.Node) and _is_cut(one, other, chunks) for one, other in pairs
    ]
    return found, tuple(placed)


def _is_cut(whole: fx.Node, part: fx.Node, chunks: int) -> bool:
    one, other = whole.meta["val"], part.meta["val"]
    if one.shape == other.shape:
        return False
    same = one.shape[1:] == other.shape[1:] and one.shape[0] == chunks * other.shape[0]
    if not same or one.stride() != other.stride():
        raise PlanError(
            f"{chunks} chunks of `{whole.name}`, {tuple(one.shape)}", "a value that the batch cuts along its first dim"
        )
    return True


def check_inner_chunks(program: Program, index: int, chunks: int, batch: int) -> None:
    """Raises PlanError where a segment's samples are not independent, or the batch does not divide."""
    segment = program.segments[index]
    graph = program.graphs[segment.graph]
    coupled = [str(found) for found in program.couples_samples if found.segment == segment.name]
    drawn = [op.name for op in graph.ops if op.target in DRAWN]
    why = coupled or drawn or (["buffers are updated"] if graph.updates else [])
    if why:
        raise PlanError(f"{chunks} chunks of a layer with {why[0]}", "one whose samples are independent")
    if batch % chunks:
        raise PlanError(f"{chunks} chunks of a batch of {batch}", "a divisor of the batch", "choose another number")


DRAWN = frozenset({"meshwright.dropout.default", "meshwright.uniform.default", "meshwright.normal.default"})
"""Ops whose numbers depend on an element's place in the whole batch."""
