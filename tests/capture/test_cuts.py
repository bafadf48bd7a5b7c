"""Where programs are cut: cells that read the two before them, and units that begin where their module does."""

from __future__ import annotations

import torch
from equality import assert_runs_like
from torch import Tensor, nn

from meshwright.capture import Program, capture

WIDTH = 8


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        left, right = self.left(last.relu()), self.right(before.tanh())
        mixed = (left * right).sigmoid() + (left - right).exp().tanh()
        return self.out(mixed.relu())


class TwoBefore(nn.Module):
    def __init__(self, cells: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell() for _ in range(cells))

    def forward(self, x: Tensor) -> Tensor:
        before = last = x
        for cell in self.cells:
            before, last = last, cell(before, last)
        return last.square().mean()


class Biased(nn.Module):
    """Layers of two blocks with one skip each; the first layer makes a bias that all of them add."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.bias = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"one": nn.Linear(WIDTH, WIDTH), "two": nn.Linear(WIDTH, WIDTH)}) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        bias: Tensor | None = None
        for layer in self.layers:
            inner = layer["one"](x).tanh().relu().sigmoid()
            if bias is None:
                bias = self.bias(inner).softmax(-1).exp()
            x = x + (inner + bias).tanh()
            x = x + layer["two"](x).relu().sigmoid().tanh().exp()
        return x.square().mean()


def graphs_of(program: Program, *names: str) -> list[int]:
    return [segment.graph for name in names for segment in program.segments if segment.name == name]


def test_cells_that_read_the_two_before_them_are_segments_of_one_graph() -> None:
    model, batch = TwoBefore(8), {"x": torch.randn(2, WIDTH)}
    program = capture(model, batch)
    assert_runs_like(program, model, batch)  # the first cell is given one value twice, the others two
    alike = graphs_of(program, *(f"cells.{i}" for i in range(2, 7)))
    assert len(alike) == 5
    assert len(set(alike)) == 1
    assert len(program.graphs[alike[0]].inputs) == 2


def test_a_unit_begins_where_its_module_does() -> None:
    for layers in (6, 9):
        program = capture(Biased(layers), (torch.ones(2, WIDTH),))
        alike = graphs_of(program, *(f"layers.{i}" for i in range(1, layers)))
        assert len(alike) == layers - 1
        assert len(set(alike)) == 1
