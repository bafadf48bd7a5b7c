from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.node import map_arg

from meshwright import torch_compat
from meshwright.generate.writes import without_writes


def test_writes_are_replaced_as_functionalize_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody sees what is written, or another dtype would be made, the graph is traced once more."""
    retraced: list[object] = []
    real = torch.func.functionalize
    monkeypatch.setattr(torch.func, "functionalize", lambda *given, **more: retraced.append(1) or real(*given, **more))
    cases: list[tuple[Callable[[Tensor], Tensor], bool]] = [
        (lambda x: x.square().mean(-1, keepdim=True).add_(1e-3).rsqrt() * x, False),
        (lambda x: (y := x.exp()).mul_(2) + y, False),
        (lambda x: (y := x.exp()).view(-1).mul_(2).sum() + y.sum(), True),
        (lambda x: (y := x.exp(), v := y[0], y.add_(1))[1] + v, True),
        (lambda x: (x > 0).logical_not_().double() + (x.exp()).gt_(1), True),
        (lambda x: (y := torch.ops.aten._unsafe_view(x.exp(), [12])).neg_() + y, True),
    ]
    for function, again in cases:
        retraced.clear()
        mode, x = torch_compat.fake_mode(), torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
        fakes = [torch_compat.fake_tensor((3, 4), x.dtype, mode)]
        traced = without_writes(torch_compat.trace_joint(function, fakes, mode), fakes, mode)
        assert torch_compat.mutating(traced) == []
        assert torch.equal(traced(x), function(x))
        assert bool(retraced) == again
        for node in traced.graph.nodes:
            if node.op == "call_function":
                known = map_arg(node.args, lambda one: one.meta["val"])
                with mode:
                    assert node.target(*known, **node.kwargs).dtype == node.meta["val"].dtype
