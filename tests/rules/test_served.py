"""Which tier serves the ops of a Program, and the warning where none does."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.capture import capture
from meshwright.errors import RuleWarning
from meshwright.rules import rule_coverage


@torch.library.custom_op("mw_tests::entangle", mutates_args=())
def entangle(x: Tensor) -> Tensor:
    """Every element depends on all of them: nothing to shard."""
    return x / x.abs().sum() + x.flip(0, 1)


@entangle.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@entangle.register_autograd
def _(ctx: object, gradient: Tensor) -> Tensor:
    return gradient.flip(0, 1)


class Net(nn.Module):
    def __init__(self, *, tangled: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.tangled = tangled

    def forward(self, x: Tensor) -> Tensor:
        y = torch.inner(self.layer(x), x)[:, 0]
        return (torch.ops.mw_tests.entangle(y[:, None]) if self.tangled else y).square().mean()


def batch() -> dict[str, Tensor]:
    return {"x": torch.zeros(8, 8)}


def test_every_op_is_listed_under_the_tier_that_serves_it() -> None:
    found = rule_coverage(capture(Net(tangled=True), batch()))
    assert found["dtensor"] == ("aten.inner.default",)
    assert found["fallback"] == ("mw_tests.entangle.default",)
    assert "aten.linear.default" in found["table"]


def test_an_op_that_runs_alike_everywhere_is_named_once_per_plan() -> None:
    with pytest.warns(RuleWarning, match=r"no rule was found for mw_tests\.entangle\.default") as caught:
        mw.plan(Net(tangled=True), batch(), "local:2")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mw.plan(Net(tangled=False), batch(), "local:2")
