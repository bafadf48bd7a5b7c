"""A pair's backward in pieces: what needs no gradient yet, then the inputs' gradients, then the parameters'.

    restore(saved, params) -> saved again, now with what was not kept
    input_half(saved, params, output gradients) -> input gradients, what the other half needs
    weight_half(rest) -> parameter gradients

Each piece is cut out of the pair's own backward graph, so together they run the same ops once. The weight half
reads no parameter: whatever does, runs in the input half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from meshwright.cost.traced.storage import depends_on, is_view
from meshwright.generate.boxed import Boxed, boxed
from meshwright.generate.chunk import ChunkedPair
from meshwright.generate.chunk_inner import ChunkedBackward
from meshwright.generate.joint import grad_outputs, label
from meshwright.generate.pair import SegmentPair
from meshwright.generate.split import split_at, split_backward
from meshwright.torch_compat import compile_boxed

Gradients = dict[str, Tensor | None]


Make = Callable[[fx.GraphModule], Boxed]


@dataclass(slots=True)
class _Piece:
    """A graph and the names of what it takes anew (`own`: parameters, gradients), besides what the piece before hands
    on. `make` makes it ready when it is first run: a schedule needs some of a pair's pieces only."""

    module: fx.GraphModule
    make: Make
    own: tuple[str, ...]
    run: Boxed | None = None

    def __call__(self, before: Sequence[Tensor], own: Mapping[str, Tensor]) -> tuple[Tensor | None, ...]:
        """`before`, where it is a list, is emptied: each tensor goes after its last use."""
        box = [*before, *(own[name] for name in self.own)]
        if isinstance(before, list):
            before.clear()
        if self.run is None:
            self.run = self.make(self.module)
        found: tuple[Tensor | None, ...] = self.run(box)
        return found


class Pieces:
    """`restored`: whether backward finds what it recomputes already there. The halves follow on it or on forward."""

    def __init__(self, pair: SegmentPair, *, restored: bool, compiled: bool = False) -> None:
        self.pair = pair
        make: Make = compile_boxed if compiled else boxed
        whole, saved, own = pair.halves.second, pair.halves.saved, pair.halves.own
        self.tangents = tuple(f"gradient_{i}" for i in range(len(grad_outputs(pair.graph))))
        self.first: _Piece | None = None
        if restored:
            late = depends_on(whole, frozenset(self.tangents))
            early = {node for node in whole.graph.nodes if node not in late and node.op != "output"}
            if any(node.op == "call_function" and not is_view(node) for node in early):
                cut = split_at(whole, early, 0, frozenset(own))
                self.first = _Piece(cut.first, make, own)
                whole, saved, own = cut.second, cut.saved, cut.own
        self.rest = _Piece(whole, make, own)
        count = len(pair.grad_inputs)
        # What the second half reads of the arguments it is handed again; only what the first computes crosses.
        params = frozenset(label(value.name) for value in pair.graph.params)
        cut = split_backward(whole, count, frozenset((*saved, *own)), params)
        self.inputs = _Piece(cut.first, make, own)
        self.weights = _Piece(cut.second, make, cut.own)
        self.saved, self.count = saved, count

    def restore(self, saved: list[Tensor], params: Mapping[str, Tensor]) -> list[Tensor]:
        if self.first is None:
            return saved
        own = {label(name): tensor for name, tensor in params.items()}
        # Gradients stand among its arguments and are not read.
        nothing = next(iter((*saved, *own.values())))
        own |= dict.fromkeys(self.tangents, nothing)
        found = self.first(saved, own)
        return [tensor for tensor in found if tensor is not None]

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[Gradients, Gradients]:
        results = self.rest(saved, self._own(params, gradients))
        inputs = dict(zip(self.pair.grad_inputs, results, strict=False))
        return inputs, dict(zip(self.pair.grad_params, results[self.count :], strict=True))

    def input_half(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[Gradients, Rest]:
        own = self._own(params, gradients)
        again = dict(zip(self.saved, saved, strict=True)) | own
        kept = {name: again[name] for name in self.weights.own}
        del again
        results = self.inputs(saved, own)
        crossed = [tensor for tensor in results[self.count :] if tensor is not None]
        return dict(zip(self.pair.grad_inputs, results, strict=False)), Rest(crossed, kept)

    def weight_half(self, rest: Rest) -> Gradients:
        results = self.weights(rest.crossed, rest.kept)
        return dict(zip(self.pair.grad_params, results, strict=True))

    def _own(self, params: Mapping[str, Tensor], gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        own = {label(name): tensor for name, tensor in params.items()}
        return own | dict(zip(self.tangents, gradients, strict=True))


@dataclass(frozen=True, slots=True)
class Rest:
    """What a weight half waits with: values that the input half computed, and arguments that both read."""

    crossed: list[Tensor]
    kept: dict[str, Tensor]

    def tensors(self) -> list[Tensor]:
        return [*self.crossed, *self.kept.values()]


class WholePieces:
    """Of a pair that runs in chunks and does not come apart: the first half does all, the second hands it over."""

    def __init__(self, pair: ChunkedPair | ChunkedBackward) -> None:
        self.pair = pair

    def restore(self, saved: list[Tensor], params: Mapping[str, Tensor]) -> list[Tensor]:
        return saved

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[Gradients, Gradients]:
        return self.pair.backward(saved, params, gradients)

    def input_half(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[Gradients, Rest]:
        inputs, weights = self.pair.backward(saved, params, gradients)
        return inputs, Rest([], {name: tensor for name, tensor in weights.items() if tensor is not None})

    def weight_half(self, rest: Rest) -> Gradients:
        return dict(rest.kept)


def pieces(
    pair: SegmentPair | ChunkedPair | ChunkedBackward, *, restored: bool, compiled: bool = False
) -> Pieces | WholePieces:
    if isinstance(pair, SegmentPair):
        return Pieces(pair, restored=restored, compiled=compiled)
    return WholePieces(pair)
