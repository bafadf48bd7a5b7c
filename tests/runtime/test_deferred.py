"""Models built without their weights: each tensor is what the constructor gives, or is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshwright.errors import RunError
from meshwright.runtime.weights.deferred import Deferred


class Constants(nn.Module):
    """Every tensor has values of its own, of which none is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        numbers = [1.0, 2.0]
        self.register_buffer("listed", torch.tensor(numbers))
        self.register_buffer("doubled", torch.as_tensor(numbers).mul(2))
        self.register_buffer("changed", torch.tensor(3).add_(1))
        self.register_buffer("counted", torch.arange(3.0))
        self.scale = nn.Parameter(torch.tensor(10.0))
        numbers[0] = 5.0


def test_constants_are_those_of_the_constructor() -> None:
    deferred, plain = Deferred(Constants, 0), Constants().state_dict()
    for name, tensor in deferred.model.state_dict().items():
        assert tensor.is_meta
        for _ in range(2):
            made = deferred.tensor(name, tensor)
            torch.testing.assert_close(made, plain[name], rtol=0, atol=0, msg=name)


class Unwritten(nn.Module):
    """Values that come from outside of the function."""

    outside = torch.ones(2, device="meta")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("found", self.outside * 2)


def test_what_no_call_makes_is_refused_by_name() -> None:
    deferred = Deferred(Unwritten, 0)
    with pytest.raises(RunError, match="found is never initialised where the model is built on the meta device"):
        deferred.tensor("found", deferred.model.get_buffer("found"))
