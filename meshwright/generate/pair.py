"""Segment pairs: a sharded segment as two plain functions, made by tracing its joint graph and cutting it.

    forward(inputs, shared_values, params, buffers) -> outputs, updates, saved
    backward(saved, params, output gradients) -> input gradients, parameter gradients

The trace runs on fake tensors, so it allocates nothing; it is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from meshwright.caches import CACHES
from meshwright.capture.program import SegmentGraph
from meshwright.errors import VerifyError
from meshwright.generate.boxed import Boxed, boxed, telling
from meshwright.generate.cut import Cut, cut_at
from meshwright.generate.joint import Joint, grad_outputs, label, trace
from meshwright.generate.rehearse import compiled
from meshwright.generate.split import Halves
from meshwright.generate.strides import as_traced, holds_images, lies_last, with_images


@dataclass(frozen=True, slots=True)
class SegmentPair:
    """Gradients come for the inputs and parameters that carry one; `None` where the segment does not reach them.

    saved: what forward hands to backward. backward_params: the parameters that backward reads. places: where each of
    backward's own arguments stands among all parameters and the gradients after them.
    """

    joint: Joint
    cut: Cut
    first: Boxed
    second: Boxed
    places: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        order = [*(label(value.name) for value in self.graph.params), *self._tangents()]
        object.__setattr__(self, "places", tuple(map(order.index, self.halves.own)))

    @property
    def graph(self) -> SegmentGraph:
        return self.joint.graph

    @property
    def halves(self) -> Halves:
        return self.cut.halves

    @property
    def grad_inputs(self) -> tuple[str, ...]:
        return self.joint.grad_inputs

    @property
    def grad_params(self) -> tuple[str, ...]:
        return self.joint.grad_params

    @property
    def saved(self) -> tuple[str, ...]:
        return self.cut.saved

    @property
    def backward_params(self) -> tuple[str, ...]:
        names = {label(value.name): value.name for value in self.graph.params}
        return tuple(names[name] for name in self.halves.own if name in names)

    def forward(self, arguments: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        """(outputs, buffers' new values, saved), from the segment's arguments by local name."""
        return self.run_forward([arguments[value.name] for value in self.graph.arguments()])

    def run_forward(self, arguments: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        """The same, from all arguments in order; the list is emptied."""
        results, graph = self.first(arguments), self.graph
        outputs, updates = len(graph.outputs), len(graph.updates)
        new = zip((buffer for buffer, _ in graph.updates), results[outputs : outputs + updates], strict=True)
        return list(results[:outputs]), dict(new), list(results[outputs + updates :])

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """(input gradients, parameter gradients) by local name. `gradients`: one per output that carries one.

        `saved`, where it is a list, is emptied: each tensor goes after its last use.
        """
        inputs, weights = self.run_backward(saved, [params[value.name] for value in self.graph.params], gradients)
        return dict(zip(self.grad_inputs, inputs, strict=True)), dict(zip(self.grad_params, weights, strict=True))

    def run_backward(
        self,
        saved: Sequence[Tensor],
        params: Sequence[Tensor],
        gradients: Sequence[Tensor],
        second: Boxed | None = None,
    ) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
        """The same by position: `params` are all the segment's, in order. second: to run for the pair's own."""
        own = [*params, *gradients]
        box = [*saved, *(own[place] for place in self.places)]
        del own
        if isinstance(saved, list):
            saved.clear()
        results, count = (second or self.second)(box), len(self.grad_inputs)
        return results[:count], results[count:]

    def telling(self) -> Callable[..., tuple[Any, ...]]:
        """Backward with somebody to tell of parameters' gradients as they are made, by their places; not compiled."""
        return telling(self.halves.second, len(self.grad_inputs))

    def _tangents(self) -> list[str]:
        return [f"gradient_{i}" for i in range(len(grad_outputs(self.graph)))]

    def verify(self) -> None:
        """The halves call with exactly what the other side hands over."""
        placeholders = [node.name for node in self.halves.second.graph.nodes if node.op == "placeholder"]
        if placeholders != [*self.halves.saved, *self.halves.own]:
            raise VerifyError(f"backward takes {placeholders}", f"{[*self.halves.saved, *self.halves.own]}")


def make_pair(
    graph: SegmentGraph,
    device: str = "cpu",
    recompute: Collection[str] = (),
    keep: Collection[str] = (),
    images: bool | None = None,
) -> SegmentPair:
    """`graph`: a sharded segment with local sizes. `recompute`: what backward reads and shall not be kept; `keep`:
    what it shall be computed from besides; names as in `Joint.names`. `images`: as `trace` has it;
    as eager kernels want it if not given."""
    last = device != "cpu" and lies_last(graph) if images is None else images
    joint = trace(graph, device, images=last)
    pair = pair_of(joint, cut_at(joint, recompute, keep))
    return replace(pair, first=with_images(pair.first, pair.halves.first)) if last else pair


@CACHES.memoized(maxsize=256)
def compiled_pair(graph: SegmentGraph, device: str, recompute: tuple[str, ...], keep: tuple[str, ...]) -> SegmentPair:
    """`make_pair`, compiled; plans that differ elsewhere share it."""
    images = device != "cpu" and holds_images(graph)
    pair = make_pair(graph, device, recompute, keep, images)
    halves = pair.halves
    first = as_traced(compiled(halves.first, images), halves.first, len(graph.outputs), images)
    second = as_traced(compiled(halves.second, images), halves.second, len(pair.grad_inputs), images)
    return replace(pair, first=first, second=second)


def pair_of(joint: Joint, found: Cut) -> SegmentPair:
    pair = SegmentPair(joint, found, boxed(found.halves.first), boxed(found.halves.second))
    pair.verify()
    return pair
