"""A segment, or a run of segments, as a rank calls it: by position, and what the positions are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from meshwright.capture.program import Segment
from meshwright.generate.joint import grad_outputs
from meshwright.generate.pair import SegmentPair
from meshwright.generate.program import Pair
from meshwright.generate.run import Run
from meshwright.runtime.step.parts import Part

Gradients = Sequence[Tensor | None]


@dataclass(slots=True)
class Link:
    """first to end: the segments it stands for. reads: the boundary values that come from outside, once for each of
    its segments that reads them. returned: outputs that a gradient comes for. input_names, weight_names: whose
    gradients backward gives, in order. clones: which of the weights' gradients lie in memory that something else has
    too: seen when it first runs, and the same ever after; half_clones: the same of a weight half."""

    part: Part
    first: int
    end: int
    segment: Segment
    pair: Pair
    reads: tuple[str, ...]
    returned: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    locals: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    weight_names: tuple[str, ...] = ()
    clones: frozenset[int] | None = field(default=None)
    half_clones: frozenset[int] | None = field(default=None)

    def __post_init__(self) -> None:
        graph, segment = self.pair.graph, self.segment
        outputs = dict(zip(graph.outputs, segment.outputs, strict=True))
        self.returned = tuple(outputs[name] for name in grad_outputs(graph))
        self.names = tuple(value.name for value in graph.arguments())
        self.locals = tuple(value.name for value in graph.params)
        inputs = dict(zip((value.name for value in graph.inputs), segment.inputs, strict=True))
        weights = dict(zip(self.locals, segment.params, strict=True))
        self.input_names = tuple(inputs[name] for name in self.pair.grad_inputs)
        self.weight_names = tuple(weights[name] for name in self.pair.grad_params)

    def forward(self, arguments: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        """(outputs, buffers' new values by local name, saved)."""
        if isinstance(self.pair, SegmentPair):
            return self.pair.run_forward(arguments)
        return self.pair.forward(dict(zip(self.names, arguments, strict=True)))

    def backward(
        self, saved: list[Tensor], params: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> tuple[Gradients, Gradients]:
        """(of the inputs, of the parameters), in the order of their names. `saved` is emptied."""
        if isinstance(self.pair, SegmentPair):
            return self.pair.run_backward(saved, params, gradients)
        inputs, weights = self.pair.backward(saved, self.by_name(params), gradients)
        return list(inputs.values()), list(weights.values())

    def by_name(self, params: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.locals, params, strict=True))

    def unshared(self, weights: Gradients, others: Gradients, given: set[int]) -> Gradients:
        """Two parameters, or one and an input, may be handed the same gradient: each gets its own, for others are added
        to it in place. given: the memory of what backward was called with."""
        if self.clones is None:
            self.clones = _shared(weights, given | {storage(tensor) for tensor in others if tensor is not None})
        return _apart(weights, self.clones)

    def half_unshared(self, weights: Gradients, given: Sequence[Tensor]) -> Gradients:
        """The same of a weight half; given: what it was called with, when it first runs."""
        if self.half_clones is None:
            self.half_clones = _shared(weights, {storage(tensor) for tensor in given})
        return _apart(weights, self.half_clones)


def segment_link(part: Part, index: int, segment: Segment, pair: Pair) -> Link:
    return Link(part, index, index + 1, segment, pair, tuple(dict.fromkeys(segment.inputs)))


def run_link(part: Part, run: Run) -> Link:
    return Link(part, run.first, run.end, run.segment, run.pair, run.reads)


def _shared(weights: Gradients, seen: set[int]) -> frozenset[int]:
    """The places of those whose memory has been seen."""
    found = set()
    for place, gradient in enumerate(weights):
        if gradient is not None:
            own = storage(gradient)
            if own in seen:
                found.add(place)
            seen.add(own)
    return frozenset(found)


def _apart(weights: Gradients, clones: frozenset[int]) -> Gradients:
    if not clones:
        return weights
    return [
        tensor.clone() if tensor is not None and place in clones else tensor for place, tensor in enumerate(weights)
    ]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
