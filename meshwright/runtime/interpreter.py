"""The interpreter: plays one rank's Instructions on real tensors. No autograd runs here; pairs carry the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from meshwright.capture.counter import RandomState, random_state
from meshwright.capture.execute import run_graph
from meshwright.capture.program import Program, Segment
from meshwright.errors import RunError
from meshwright.generate.program import Generated
from meshwright.plan import Instruction
from meshwright.runtime.evaluation import in_eval_mode
from meshwright.runtime.store import Store
from meshwright.runtime.weigh import Weigher


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch on its way: boundary values, what forwards saved, gradients on their way back.

    weight: its share in the loss; a micro-batch of weight zero, all of whose targets are ignored, is not run.
    random: what its random numbers are made from.
    """

    values: dict[str, Tensor]
    weight: float
    random: RandomState
    saved: dict[int, list[Tensor]] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


class Interpreter:
    """Plays a step; `progress` is told each instruction before it runs."""

    def __init__(
        self,
        program: Program,
        generated: Generated,
        store: Store,
        buffers: dict[str, Tensor],
        device: torch.device,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.program, self.generated, self.store = program, generated, store
        self.buffers, self.device, self.progress = buffers, device, progress
        self.weigher = Weigher(program, generated, store.plan.microbatches, device)
        self.micro: list[MicroBatch] = []
        self.last_reader = {name: i for i, segment in enumerate(program.segments) for name in segment.inputs}

    def run(
        self, instructions: Sequence[Instruction], batches: Sequence[Mapping[str, Tensor]], random: RandomState
    ) -> Tensor:
        """One step up to the optimizer's; returns the loss of all micro-batches."""
        self._begin(batches, random)
        for instruction in instructions:
            self.progress(str(instruction))
            self._execute(instruction)
        self.store.end_step()
        return self._loss()

    def _begin(self, batches: Sequence[Mapping[str, Tensor]], random: RandomState) -> None:
        weights, rows = self.weigher.weights(batches, self.buffers), self.store.plan.microbatch
        self.micro = [
            MicroBatch(dict(batch), weight, replace(random, first_row=number * rows, rows=rows))
            for number, (batch, weight) in enumerate(zip(batches, weights, strict=True))
        ]

    def evaluate(self, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The loss in eval mode; gathers what it needs and keeps nothing."""
        self._begin(batches, RandomState(dropout=False))
        for micro in self.micro:
            self._prologue(micro)
            for index, segment in enumerate(self.program.segments):
                self.progress(f"evaluate {index}")
                self.store.gather(index)
                graph = in_eval_mode(self.generated.sharded[index])
                found = run_graph(graph, self._arguments(index, segment, micro), self.device)
                micro.values.update(zip(segment.outputs, (found[name] for name in graph.outputs), strict=True))
                self._drop(index, segment, micro)
                self.store.free(segment.params)
        self.store.end_step()
        return self._loss()

    def _loss(self) -> Tensor:
        losses = [micro.values[self.program.loss] * micro.weight for micro in self.micro if micro.weight != 0]
        self.micro = []
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _execute(self, instruction: Instruction) -> None:
        if instruction.kind == "step":
            return
        index = instruction.segment
        assert index is not None
        segment = self.program.segments[index]
        if instruction.kind in ("forward", "backward"):
            assert instruction.microbatch is not None
            micro = self.micro[instruction.microbatch]
            if micro.weight != 0:
                (self._forward if instruction.kind == "forward" else self._backward)(index, segment, micro)
        elif instruction.kind == "gather":
            self.store.gather(index)
        elif instruction.kind == "free":
            self.store.free(segment.params)
        elif instruction.kind == "reduce":
            self.store.reduce(index)
        else:
            raise RunError(f"instruction `{instruction}`", "one that a run without pipeline knows")

    def _forward(self, index: int, segment: Segment, micro: MicroBatch) -> None:
        if index == 0:
            self._prologue(micro)
        pair = self.generated.pairs[index]
        outputs, updates, micro.saved[index] = pair.forward(self._arguments(index, segment, micro))
        local = dict(zip((value.name for value in pair.graph.buffers), segment.buffers, strict=True))
        self.buffers.update((local[name], tensor) for name, tensor in updates.items())
        micro.values.update(zip(segment.outputs, outputs, strict=True))
        self._drop(index, segment, micro)

    def _arguments(self, index: int, segment: Segment, micro: MicroBatch) -> dict[str, Tensor]:
        graph, values = self.generated.pairs[index].graph, micro.values
        found = dict(zip((v.name for v in graph.inputs), (values[n] for n in segment.inputs), strict=True))
        found |= dict(zip((v.name for v in graph.commons), (values[n] for n in segment.commons), strict=True))
        found |= dict(zip((v.name for v in graph.buffers), (self.buffers[n] for n in segment.buffers), strict=True))
        return found | self._params(index, segment)

    def _drop(self, index: int, segment: Segment, micro: MicroBatch) -> None:
        """Boundary values go with their last reader."""
        for name in segment.inputs:
            if self.last_reader[name] == index:
                del micro.values[name]

    def _prologue(self, micro: MicroBatch) -> None:
        prologue = self.generated.prologue
        with random_state(micro.random):
            found = run_graph(prologue, micro.values | self.buffers, self.device)
        micro.values.update(zip(self.program.commons, (found[name] for name in prologue.outputs), strict=True))

    def _backward(self, index: int, segment: Segment, micro: MicroBatch) -> None:
        pair = self.generated.pairs[index]
        local = pair.graph.values()
        incoming = [
            self._gradient(name, micro)
            for name, output in zip(segment.outputs, pair.graph.outputs, strict=True)
            if local[output].grad
        ]
        inputs, params = pair.backward(micro.saved.pop(index), self._params(index, segment), incoming)
        names = dict(zip((value.name for value in pair.graph.inputs), segment.inputs, strict=True))
        for key, gradient in inputs.items():
            if gradient is not None:
                found = micro.gradients.get(names[key])
                micro.gradients[names[key]] = gradient if found is None else found + gradient
        full = dict(zip((value.name for value in pair.graph.params), segment.params, strict=True))
        # Two parameters, or one and an input, may be handed the same gradient: each gets its own.
        seen = {_storage(tensor) for tensor in (*inputs.values(), *incoming) if tensor is not None}
        for key, gradient in params.items():
            if gradient is None:
                continue
            own = _storage(gradient)
            self.store.add_gradient(full[key], gradient.clone() if own in seen else gradient)
            seen.add(own)
        self.store.scatter(index)

    def _params(self, index: int, segment: Segment) -> dict[str, Tensor]:
        graph = self.generated.pairs[index].graph
        return {v.name: self.store.compute(name) for v, name in zip(graph.params, segment.params, strict=True)}

    def _gradient(self, name: str, micro: MicroBatch) -> Tensor:
        if name == self.program.loss:
            return torch.full_like(micro.values[name], micro.weight)
        return micro.gradients.pop(name)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
