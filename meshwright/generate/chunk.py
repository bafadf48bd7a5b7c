"""The fused tail: the last segment, forward and backward, one chunk of the samples after the other.

The loss is a sum over chunks times weights that are known before (`capture.averaging`), so each chunk's gradients can
be had at once: logits of one chunk live at a time, and none is computed twice. Forward returns the loss and keeps the
gradients for an upstream gradient of one; backward multiplies them by the one that arrives. Gradients of parameters
are summed over the chunks in single precision where they are narrower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor, fx

from meshwright.capture.averaging import Averaging, averaging
from meshwright.capture.execute import run_graph
from meshwright.capture.op import live
from meshwright.capture.program import Program, SegmentGraph, Value
from meshwright.errors import PlanError
from meshwright.generate.accumulate import LARGE, Adder
from meshwright.generate.pair import SegmentPair
from meshwright.layout.collectives import all_reduce

NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class ChunkedPair:
    """Runs like a SegmentPair. graph: the whole segment; part: the pair of one chunk.

    dims: for each argument that is cut, the dim; the others are handed to every chunk whole. adders: kernels for the
    sums of large gradients.
    """

    graph: SegmentGraph
    part: SegmentPair
    chunks: int
    dims: Mapping[str, int]
    averaging: Averaging
    adders: Mapping[str, Adder] = field(default_factory=dict)

    @property
    def grad_inputs(self) -> tuple[str, ...]:
        return self.part.grad_inputs

    @property
    def grad_params(self) -> tuple[str, ...]:
        return self.part.grad_params

    @property
    def saved(self) -> tuple[str, ...]:
        return tuple(f"gradient of {name}" for name in (*self.grad_inputs, *self.grad_params))

    def forward(self, arguments: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        """([loss], no buffers, gradients for an upstream gradient of one)."""
        params = {value.name: arguments[value.name] for value in self.graph.params}
        weights = self._weights(arguments)
        sums = _Sums(self, arguments)
        loss: Tensor | None = None
        for index in range(self.chunks):
            outputs, _, saved = self.part.forward(self._slice(arguments, index))
            weight = weights[index].to(outputs[0].dtype)
            # A chunk none of whose targets counts has no mean, and no share in the loss.
            share = torch.where(weights[index] > 0, outputs[0] * weights[index], 0.0)
            loss = share if loss is None else loss + share
            narrow = weight.dtype in NARROW and self.averaging.kind == "count"
            # A share of the targets is no number of half precision: the gradients are scaled instead.
            upstream, scale = (torch.ones_like(weight), weights[index].float()) if narrow else (weight, None)
            del outputs
            sums.add(index, *self.part.backward(saved, params, [upstream]), scale)
        assert loss is not None
        return [loss.to(weight.dtype)], {}, sums.result()

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """What forward kept, times the gradient of the loss. `saved`, where it is a list, is emptied."""
        found: list[Tensor | None] = [tensor.mul_(gradients[0].to(tensor.dtype)) for tensor in saved]
        if isinstance(saved, list):
            saved.clear()
        count = len(self.grad_inputs)
        inputs, weights = found[:count], found[count:]
        return dict(zip(self.grad_inputs, inputs, strict=True)), dict(zip(self.grad_params, weights, strict=True))

    def _slice(self, arguments: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
        found = dict(arguments)
        for name, dim in self.dims.items():
            length = arguments[name].shape[dim] // self.chunks
            found[name] = arguments[name].narrow(dim, index * length, length)
        return found

    def _weights(self, arguments: Mapping[str, Tensor]) -> list[Tensor]:
        place = next(iter(arguments.values())).device
        if self.averaging.kind != "count":
            share = 1.0 if self.averaging.kind == "sum" else 1.0 / self.chunks
            return [torch.tensor(share, device=place, dtype=torch.float64)] * self.chunks
        op = next(op for op in self.part.graph.ops if op.name == self.averaging.op)
        targets = op.operands()[1]
        counted = replace(self.part.graph, ops=tuple(live(self.part.graph.ops, [targets])))
        parts = [self._slice(arguments, index) for index in range(self.chunks)]
        found = [run_graph(counted, part, place)[targets] for part in parts]
        counts = torch.stack([(tensor != self.averaging.ignored).sum() for tensor in found])
        axis = str(dict(op.kwargs).get("rows", ""))
        if axis:
            counts = all_reduce(counts, axis)
        return list(counts.double() / counts.sum())


class _Sums:
    """Gradients as they come: those of cut arguments side by side, the others added up."""

    def __init__(self, pair: ChunkedPair, arguments: Mapping[str, Tensor]) -> None:
        self.pair, self.arguments = pair, arguments
        self.found: dict[str, Tensor] = {}

    def add(
        self,
        index: int,
        inputs: Mapping[str, Tensor | None],
        params: Mapping[str, Tensor | None],
        scale: Tensor | None,
    ) -> None:
        for name, gradient in (*inputs.items(), *params.items()):
            if gradient is None:
                continue
            dim = self.pair.dims.get(name)
            if dim is not None:
                if name not in self.found:
                    self.found[name] = torch.empty_like(self.arguments[name])
                length = gradient.shape[dim]
                part = self.found[name].narrow(dim, index * length, length)
                part.copy_(gradient) if scale is None else torch.mul(gradient, scale, out=part)
                continue
            if name not in self.found:
                wide = torch.float32 if gradient.dtype in NARROW else gradient.dtype
                self.found[name] = torch.zeros_like(gradient, dtype=wide)
            if scale is None:
                self.found[name].add_(gradient)
            elif name in self.pair.adders:
                self.pair.adders[name](self.found[name], gradient, scale)
            else:  # in one go: these are the largest tensors of the step
                self.found[name].addcmul_(gradient, scale)

    def result(self) -> list[Tensor]:
        names = (*self.pair.grad_inputs, *self.pair.grad_params)
        found = []
        for name in names:
            made = self.found.pop(name, None)
            whole = self.arguments[name]
            found.append(torch.zeros_like(whole) if made is None else made.to(whole.dtype))
        return found


def chunked(whole: SegmentGraph, part: SegmentPair, chunks: int, found: Averaging) -> ChunkedPair:
    """`whole`: the last segment, sharded, at the full batch; `part`: the pair of the same at batch / chunks."""
    dims = {}
    for value, piece in zip(whole.arguments(), part.graph.arguments(), strict=True):
        dim = _cut_dim(value, piece, chunks)
        if dim is not None:
            dims[value.name] = dim
    return ChunkedPair(whole, part, chunks, dims, found, _adders(part, dims))


def _adders(part: SegmentPair, dims: Mapping[str, int]) -> dict[str, Adder]:
    """Of a compiled pair, for what is large and summed in single precision."""
    if isinstance(part.first, fx.GraphModule):
        return {}
    device = next(node.meta["val"].device.type for node in part.joint.module.graph.nodes if node.op == "placeholder")
    found = {}
    for value in (*part.graph.inputs, *part.graph.params):
        dtype = getattr(torch, value.type.dtype)
        if value.grad and value.name not in dims and dtype in NARROW and prod(value.type.sizes) >= LARGE:
            found[value.name] = Adder(prod(value.type.sizes), dtype, device)
    return found


def check_chunkable(program: Program, chunks: int, batch: int) -> Averaging:
    """How the chunks' losses make the loss. Raises PlanError where they do not, or where the batch does not divide."""
    last = program.segments[-1]
    coupled = [str(found) for found in program.couples_samples if found.segment == last.name]
    if program.graphs[last.graph].updates or coupled:
        raise PlanError(
            f"{chunks} chunks of a last layer in which {coupled[0] if coupled else 'buffers are updated'}",
            "one whose samples are independent",
            "plan without chunks",
        )
    if any(parameter.type.dtype == "float16" for parameter in program.parameters):
        raise PlanError(
            f"{chunks} chunks of a last layer in float16, whose gradients are kept before the loss is scaled",
            "another precision, or a last layer in one piece",
            "plan without chunks",
        )
    if batch % chunks:
        raise PlanError(f"{chunks} chunks of a batch of {batch}", "a divisor of the batch", "choose another number")
    try:
        return averaging(program)
    except PlanError as error:
        raise PlanError(error.given.replace("micro-batches", f"{chunks} chunks"), error.expected) from error


def _cut_dim(whole: Value, piece: Value, chunks: int) -> int | None:
    pairs = list(enumerate(zip(whole.type.sizes, piece.type.sizes, strict=True)))
    different = [dim for dim, (size, part) in pairs if size != part]
    if not different:
        return None
    if len(different) > 1 or whole.type.sizes[different[0]] != chunks * piece.type.sizes[different[0]]:
        raise PlanError(
            f"{chunks} chunks of {whole}", "a value that the batch cuts along one dim", "plan without chunks"
        )
    return different[0]
