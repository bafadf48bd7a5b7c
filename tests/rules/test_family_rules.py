"""Every op of the model families, as captured: each strategy computes what the unsharded op computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.program import Ref, SegmentGraph, Value
from meshwright.cluster import logical_mesh
from meshwright.models.gpt import GPT
from meshwright.models.llama import Llama
from meshwright.models.resnet import ResNet
from meshwright.rules.prove import Case, case_of
from meshwright.rules.resolve import resolve_rule
from meshwright.rules.strategies import prove

TOKENS = {"tokens": torch.zeros(6, 12, dtype=torch.int64), "targets": torch.zeros(6, 12, dtype=torch.int64)}
IMAGES = {"images": torch.zeros(6, 3, 24, 24), "labels": torch.zeros(6, dtype=torch.int64)}


def model_of(family: str) -> tuple[nn.Module, dict[str, Tensor]]:
    if family == "gpt":
        return GPT(2, 24, 6, 36, 30, 12, tied=True), TOKENS
    if family == "llama":
        return Llama(2, 48, 12, 6, 36, 30, tied=False, rope_base=1e4), TOKENS
    return ResNet((1, 1), 6, 12), IMAGES


def operand(value: Value) -> Tensor:
    """Random values: double precision for floats, indices that every table here has for whole numbers."""
    if not value.type.is_float:
        return torch.randint(0, 12, value.type.sizes)
    return torch.randn(value.type.sizes, dtype=torch.float64).requires_grad_(value.grad)


def graphs_of(family: str) -> Iterator[SegmentGraph]:
    program = capture(*model_of(family))
    yield from (graph.at(6) for graph in (program.prologue, *program.graphs))


def cases(family: str) -> list[Case]:
    """One case per distinct op, arguments and operand shapes."""
    found: dict[object, Case] = {}
    for graph in graphs_of(family):
        values = graph.values()
        for op in graph.ops:
            literals = op.map(lambda leaf: None if isinstance(leaf, Ref) else leaf)
            key = (op.target, literals.args, literals.kwargs, tuple(values[name].type for name in op.operands()))
            if key not in found:
                found[key] = case_of(op, [operand(values[name]) for name in op.operands()])
    return list(found.values())


@pytest.mark.parametrize("family", ["gpt", "llama", "resnet"])
def test_every_op_of_the_family_has_a_rule_of_its_own(family: str) -> None:
    ops = [op for graph in graphs_of(family) for op in graph.ops]
    assert ops
    assert [op.target for op in ops if resolve_rule(op).is_fallback] == []


@pytest.mark.parametrize(
    "mesh", [{"x": 3}, *(pytest.param(mesh, marks=pytest.mark.full) for mesh in ({"x": 2}, {"x": 2, "y": 2}))], ids=str
)
@pytest.mark.parametrize("family", ["gpt", "llama", "resnet"])
def test_every_strategy_of_every_op_equals_the_unsharded_op(family: str, mesh: dict[str, int]) -> None:
    given = cases(family)
    proven = sum(prove(case, logical_mesh(mesh)) for case in given)
    assert proven > 3 * len(given)  # beside the one that shards nothing
