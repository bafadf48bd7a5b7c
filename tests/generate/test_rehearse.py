"""Compiled graphs are tried on zeros that lie in memory as they were traced."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.generate.rehearse import is_alone, zeros
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint


def test_a_rehearsal_has_the_traced_arguments() -> None:
    mode = fake_mode()
    fakes = [fake_tensor((4, 3), torch.float64, mode), fake_tensor((2,), torch.int64, mode)]
    traced = trace_joint(lambda table, index: [table.t()[index]], fakes, mode)
    made = zeros(traced)
    assert [(tuple(one.shape), one.stride(), one.dtype) for one in made] == [
        ((4, 3), (3, 1), torch.float64),
        ((2,), (1,), torch.int64),
    ]
    assert traced(*made)[0].shape == (2, 4)
    assert is_alone(traced)


def test_what_needs_other_ranks_is_not_tried() -> None:
    mode = fake_mode()
    traced = trace_joint(lambda x: [x * 2], [fake_tensor((4,), torch.float32, mode)], mode)
    node = next(node for node in traced.graph.nodes if node.op == "call_function")
    node.target = _Named("meshwright.all_reduce.default")
    assert not is_alone(traced)


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def __str__(self) -> str:
        return self.name
