"""Layers that are alike are traced once, and the Program is the same as if each had been traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equality import assert_runs_like
from small_families import captured, small_family
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.build import build
from meshwright.capture.reading.read import read
from meshwright.capture.tracing.export import export


def calls(model: nn.Module, batch: dict[str, Tensor], once: bool) -> int:
    return sum(node.op == "call_function" for node in export(model, batch, once=once).graph.graph.nodes)


@pytest.mark.parametrize(
    "name", ["gpt", *(pytest.param(name, marks=pytest.mark.full) for name in ("resnet", "t5", "moe"))]
)
def test_the_program_is_that_of_tracing_every_layer(name: str) -> None:
    model, batch = small_family(name)
    exported = export(model, batch, once=False)
    whole = build(read(exported.graph, model), 4)
    found = captured(name)
    assert [segment.params for segment in found.segments] == [segment.params for segment in whole.segments]
    assert list(map(str, found.graphs)) == list(map(str, whole.graphs))


def test_alike_layers_are_traced_once() -> None:
    model, batch = small_family("gpt")
    assert calls(model, batch, once=True) < 0.6 * calls(model, batch, once=False)


class Layered(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(4))
        change(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def other_setting(layers: nn.ModuleList) -> None:
    layers[2][1].eps = 0.5


def other_child(layers: nn.ModuleList) -> None:
    layers[2][2] = nn.ReLU()


def shared_weight(layers: nn.ModuleList) -> None:
    layers[3][0].weight = layers[0][0].weight


def hooked(layers: nn.ModuleList) -> None:
    layers[1].register_forward_hook(lambda module, args, output: output * 3)


def frozen(layers: nn.ModuleList) -> None:
    layers[1][0].weight.requires_grad_(False)


@pytest.mark.parametrize("change", [lambda layers: None, other_setting, other_child, shared_weight, hooked, frozen])
def test_what_differs_is_traced_by_itself(change: Any) -> None:
    model, batch = Layered(change), {"x": torch.randn(5, 4)}
    assert_runs_like(capture(model, batch), model, batch, tolerance=2e-6)


class WritesItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2) + 1


def test_a_layer_that_writes_to_its_input_is_traced_every_time() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(4, 4)
            self.layers = nn.ModuleList(WritesItsInput() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x)
            for layer in self.layers:
                y = x * 1
                x = layer(y) + y
            return x.sum()

    model, batch = Model(), {"x": torch.randn(5, 4)}
    assert_runs_like(capture(model, batch), model, batch)


class Pair:
    def __init__(self, x: Tensor, scale: Tensor) -> None:
        self.x, self.scale = x, scale


class Handing(nn.Module):
    """Hands on what it was given in the same kind of thing: a dict, or an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, given: Any) -> Any:
        x, scale = (given["x"], given["scale"]) if isinstance(given, dict) else (given.x, given.scale)
        x = self.linear(x) * scale
        return {"x": x, "scale": scale.tanh()} if isinstance(given, dict) else Pair(x, scale.tanh())


class Handed(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.layers = kind, nn.ModuleList(Handing() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        given = self.kind(x=x, scale=x.exp())
        for layer in self.layers:
            given = layer(given)
        return (given["x"] if isinstance(given, dict) else given.x).square().sum()


@pytest.mark.parametrize("kind", [dict, Pair])
def test_tensors_in_dicts_and_objects_are_each_layers_own(kind: Any) -> None:
    model, batch = Handed(kind), {"x": torch.randn(3, 4)}
    assert_runs_like(capture(model, batch), model, batch)
