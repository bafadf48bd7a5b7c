"""Segment pairs: a sharded segment as two plain functions, made by tracing its joint graph and cutting it.

    forward(inputs, commons, params, buffers) -> outputs, updates, saved
    backward(saved, params, output gradients) -> input gradients, parameter gradients

The trace runs on fake tensors, so it allocates nothing; it is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from meshwright.capture.program import SegmentGraph
from meshwright.errors import VerifyError
from meshwright.generate.boxed import Boxed, boxed
from meshwright.generate.cut import Cut, cut_at
from meshwright.generate.joint import Joint, grad_outputs, label, trace
from meshwright.generate.split import Halves, split
from meshwright.generate.strides import as_traced
from meshwright.torch_compat import compile_boxed


@dataclass(frozen=True, slots=True)
class SegmentPair:
    """Gradients come for the inputs and parameters that carry one; `None` where the segment does not reach them.

    saved: what forward hands to backward. backward_params: the parameters that backward reads.
    """

    joint: Joint
    cut: Cut
    first: Boxed
    second: Boxed

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
        results = self.first([arguments[value.name] for value in self.graph.arguments()])
        outputs, updates = len(self.graph.outputs), len(self.graph.updates)
        new = zip((buffer for buffer, _ in self.graph.updates), results[outputs : outputs + updates], strict=True)
        return list(results[:outputs]), dict(new), list(results[outputs + updates :])

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """(input gradients, parameter gradients) by local name. `gradients`: one per output that carries one.

        `saved`, where it is a list, is emptied: each tensor goes after its last use.
        """
        own = {label(name): tensor for name, tensor in params.items()}
        own |= dict(zip(self._tangents(), gradients, strict=True))
        box = [*saved, *(own[name] for name in self.halves.own)]
        del own
        if isinstance(saved, list):
            saved.clear()
        results = self.second(box)
        inputs = dict(zip(self.grad_inputs, results, strict=False))
        return inputs, dict(zip(self.grad_params, results[len(self.grad_inputs) :], strict=True))

    def backward_halves(self) -> Halves:
        """Backward cut again: input gradients first, parameter gradients from what the first half hands on."""
        own = frozenset((*self.halves.own, *self.halves.saved))
        return split(self.halves.second, len(self.grad_inputs), own)

    def _tangents(self) -> list[str]:
        return [f"gradient_{i}" for i in range(len(grad_outputs(self.graph)))]

    def verify(self) -> None:
        """The halves call with exactly what the other side hands over."""
        placeholders = [node.name for node in self.halves.second.graph.nodes if node.op == "placeholder"]
        if placeholders != [*self.halves.saved, *self.halves.own]:
            raise VerifyError(f"backward takes {placeholders}", f"{[*self.halves.saved, *self.halves.own]}")


def make_pair(
    graph: SegmentGraph, device: str = "cpu", recompute: Collection[str] = (), keep: Collection[str] = ()
) -> SegmentPair:
    """`graph`: a sharded segment with local sizes. `recompute`: what backward reads and shall not be kept; `keep`:
    what it shall be computed from besides; names as in `Joint.names`."""
    joint = trace(graph, device)
    return pair_of(joint, cut_at(joint, recompute, keep))


@lru_cache(maxsize=256)
def compiled_pair(graph: SegmentGraph, device: str, recompute: tuple[str, ...], keep: tuple[str, ...]) -> SegmentPair:
    """`make_pair`, compiled; plans that differ elsewhere share it."""
    pair = make_pair(graph, device, recompute, keep)
    halves = pair.halves
    first = as_traced(compile_boxed(halves.first), halves.first, len(graph.outputs))
    second = as_traced(compile_boxed(halves.second), halves.second, len(pair.grad_inputs))
    return replace(pair, first=first, second=second)


def pair_of(joint: Joint, found: Cut) -> SegmentPair:
    pair = SegmentPair(joint, found, boxed(found.halves.first), boxed(found.halves.second))
    pair.verify()
    return pair
