"""The interpreter: plays one rank's Instructions on real tensors. No autograd runs here; pairs carry the gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from meshwright.capture.execute import run_graph
from meshwright.capture.program import Program, Segment
from meshwright.errors import RunError
from meshwright.generate.program import Generated
from meshwright.plan import Instruction
from meshwright.runtime.store import Store


class Interpreter:
    """State of one step: boundary values, what forwards saved, gradients on their way back."""

    def __init__(
        self, program: Program, generated: Generated, store: Store, buffers: dict[str, Tensor], device: torch.device
    ) -> None:
        self.program, self.generated, self.store = program, generated, store
        self.buffers, self.device = buffers, device
        self.values: dict[str, Tensor] = {}
        self.saved: dict[int, list[Tensor]] = {}
        self.gradients: dict[str, Tensor] = {}
        self.last_reader = {name: i for i, segment in enumerate(program.segments) for name in segment.inputs}

    def run(self, instructions: tuple[Instruction, ...], batch: Mapping[str, Tensor]) -> Tensor:
        """One step up to the optimizer's; returns the loss."""
        self.values, self.saved, self.gradients = dict(batch), {}, {}
        prologue = self.generated.prologue
        found = run_graph(prologue, self.values | self.buffers, self.device)
        self.values.update(zip(self.program.commons, (found[name] for name in prologue.outputs), strict=True))
        for instruction in instructions:
            self._execute(instruction)
        self.store.end_step()
        return self.values[self.program.loss]

    def _execute(self, instruction: Instruction) -> None:
        if instruction.kind == "step":
            return
        index = instruction.segment
        assert index is not None
        segment = self.program.segments[index]
        if instruction.kind == "forward":
            self._forward(index, segment)
        elif instruction.kind == "backward":
            self._backward(index, segment)
        elif instruction.kind == "gather":
            self.store.gather(segment.params)
        elif instruction.kind == "free":
            self.store.free(segment.params)
        elif instruction.kind == "reduce":
            self.store.reduce(name for name in segment.params if self.program.uses_of(name)[0] == index)
        else:
            raise RunError(f"instruction `{instruction}`", "one that a run without pipeline knows")

    def _forward(self, index: int, segment: Segment) -> None:
        pair = self.generated.pairs[index]
        graph = pair.graph
        arguments = dict(zip((v.name for v in graph.inputs), (self.values[n] for n in segment.inputs), strict=True))
        arguments |= dict(zip((v.name for v in graph.commons), (self.values[n] for n in segment.commons), strict=True))
        arguments |= self._params(index, segment)
        arguments |= dict(zip((v.name for v in graph.buffers), (self.buffers[n] for n in segment.buffers), strict=True))
        outputs, updates, self.saved[index] = pair.forward(arguments)
        local = dict(zip((value.name for value in graph.buffers), segment.buffers, strict=True))
        self.buffers.update((local[name], tensor) for name, tensor in updates.items())
        self.values.update(zip(segment.outputs, outputs, strict=True))
        for name in segment.inputs:
            if self.last_reader[name] == index:
                del self.values[name]

    def _backward(self, index: int, segment: Segment) -> None:
        pair = self.generated.pairs[index]
        local = pair.graph.values()
        incoming = [
            self._gradient(name)
            for name, output in zip(segment.outputs, pair.graph.outputs, strict=True)
            if local[output].grad
        ]
        inputs, params = pair.backward(self.saved.pop(index), self._params(index, segment), incoming)
        names = dict(zip((value.name for value in pair.graph.inputs), segment.inputs, strict=True))
        for key, gradient in inputs.items():
            if gradient is not None:
                self._add(names[key], gradient)
        full = dict(zip((value.name for value in pair.graph.params), segment.params, strict=True))
        for key, gradient in params.items():
            if gradient is not None:
                self.store.add_gradient(full[key], gradient)

    def _params(self, index: int, segment: Segment) -> dict[str, Tensor]:
        graph = self.generated.pairs[index].graph
        return {v.name: self.store.compute(name) for v, name in zip(graph.params, segment.params, strict=True)}

    def _gradient(self, name: str) -> Tensor:
        if name == self.program.loss:
            return torch.ones_like(self.values[name])
        return self.gradients.pop(name)

    def _add(self, name: str, gradient: Tensor) -> None:
        found = self.gradients.get(name)
        self.gradients[name] = gradient if found is None else found + gradient
