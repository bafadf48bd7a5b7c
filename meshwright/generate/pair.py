"""Segment pairs: a sharded segment as two plain functions, made by tracing its joint graph and cutting it.

    forward(inputs, commons, params, buffers) -> outputs, updates, saved
    backward(saved, params, output gradients) -> input gradients, parameter gradients

The trace runs on fake tensors, so it allocates nothing; it is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, fx

from meshwright.capture.execute import run_graph
from meshwright.capture.program import SegmentGraph, Value
from meshwright.errors import VerifyError
from meshwright.generate.split import Halves, split
from meshwright.torch_compat import fake_mode, fake_tensor, functional, trace_joint


@dataclass(frozen=True, slots=True)
class SegmentPair:
    """Gradients come for the inputs and parameters that carry one; `None` where the segment does not reach them.

    saved: what forward hands to backward. backward_params: the parameters that backward reads.
    """

    graph: SegmentGraph
    joint: fx.GraphModule
    halves: Halves
    grad_inputs: tuple[str, ...]
    grad_params: tuple[str, ...]

    @property
    def saved(self) -> tuple[str, ...]:
        return self.halves.saved

    @property
    def backward_params(self) -> tuple[str, ...]:
        names = {label(value.name): value.name for value in self.graph.params}
        return tuple(names[name] for name in self.halves.own if name in names)

    def forward(self, arguments: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        """(outputs, buffers' new values, saved), from the segment's arguments by local name."""
        results = self.halves.first(*(arguments[value.name] for value in self.graph.arguments()))
        outputs, updates = len(self.graph.outputs), len(self.graph.updates)
        new = zip((buffer for buffer, _ in self.graph.updates), results[outputs : outputs + updates], strict=True)
        return list(results[:outputs]), dict(new), list(results[outputs + updates :])

    def backward(
        self, saved: Sequence[Tensor], params: Mapping[str, Tensor], gradients: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """(input gradients, parameter gradients) by local name. `gradients`: one per output that carries one."""
        own = {label(name): tensor for name, tensor in params.items()}
        own |= dict(zip(self._tangents(), gradients, strict=True))
        results = self.halves.second(*saved, *(own[name] for name in self.halves.own))
        inputs = dict(zip(self.grad_inputs, results, strict=False))
        return inputs, dict(zip(self.grad_params, results[len(self.grad_inputs) :], strict=True))

    def backward_halves(self) -> Halves:
        """Backward cut again: input gradients first, parameter gradients from what the first half hands on."""
        own = frozenset((*self.halves.own, *self.halves.saved))
        return split(self.halves.second, len(self.grad_inputs), own)

    def _tangents(self) -> list[str]:
        return [f"gradient_{i}" for i in range(len(_grad_outputs(self.graph)))]

    def verify(self) -> None:
        """The halves call with exactly what the other side hands over."""
        placeholders = [node.name for node in self.halves.second.graph.nodes if node.op == "placeholder"]
        if placeholders != [*self.halves.saved, *self.halves.own]:
            raise VerifyError(f"backward takes {placeholders}", f"{[*self.halves.saved, *self.halves.own]}")


def make_pair(graph: SegmentGraph, device: str = "cpu") -> SegmentPair:
    """`graph`: a sharded segment with local sizes."""
    arguments = graph.arguments()
    grad_inputs = tuple(value.name for value in graph.inputs if value.grad)
    grad_params = tuple(value.name for value in graph.params if value.grad)
    outputs = _grad_outputs(graph)
    mode = fake_mode()
    names = [value.name for value in arguments]
    place = torch.device(device)

    def joint(*tensors: Tensor) -> list[Tensor | None]:
        bound = dict(zip(names, tensors, strict=False))
        for name in (*grad_inputs, *grad_params):
            # Detached, so that a value which is also an output's own storage still gets a gradient of its own.
            bound[name] = bound[name].detach().requires_grad_()
        values = run_graph(graph, bound, place)
        results = [values[name] for name in (*graph.outputs, *(value for _, value in graph.updates))]
        wanted = [bound[name] for name in (*grad_inputs, *grad_params)]
        reached = [(values[name], tangent) for name, tangent in zip(outputs, tensors[len(names) :], strict=True)]
        roots, tangents = zip(*reached, strict=True) if reached else ((), ())
        grads = torch.autograd.grad(roots, wanted, tangents, allow_unused=True) if wanted and roots else []
        return [*(t.detach() for t in results), *grads]

    fakes = [_fake(value, mode, device) for value in arguments]
    known = graph.values()
    fakes += [_fake(known[name], mode, device) for name in outputs]
    traced = functional(trace_joint(joint, fakes, mode), fakes, mode)
    labels = [*map(label, names), *(f"gradient_{i}" for i in range(len(outputs)))]
    _name_placeholders(traced, labels)
    tangents = frozenset(labels[len(names) :])
    own = frozenset(label(value.name) for value in graph.params) | tangents
    halves = split(traced, len(graph.outputs) + len(graph.updates), own, late_only=tangents)
    pair = SegmentPair(graph, traced, halves, grad_inputs, grad_params)
    pair.verify()
    return pair


@cache
def label(name: str) -> str:
    """The name as a traced graph can have it: one that Python knows already (`input`) is changed there."""
    return name if fx.Graph().placeholder(name).name == name else f"{name}_argument"


def _grad_outputs(graph: SegmentGraph) -> list[str]:
    values = graph.values()
    return [name for name in graph.outputs if values[name].grad]


def _fake(value: Value, mode: object, device: str) -> Tensor:
    dtype = getattr(torch, value.type.dtype)
    return fake_tensor(value.type.sizes, dtype, mode, device)  # type: ignore[arg-type]


def _name_placeholders(traced: fx.GraphModule, labels: list[str]) -> None:
    """Give the traced arguments the segment's own names; other nodes step aside."""
    nodes = [node for node in traced.graph.nodes if node.op == "placeholder"]
    taken = set(labels)
    for node in traced.graph.nodes:
        if node not in nodes and node.name in taken:
            node.name = f"{node.name}_"
    for node, label in zip(nodes, labels, strict=True):
        node.target = label
        node.name = label
    traced.recompile()
