"""`load_state_dict` of an optimizer under a pipeline: of a plain run's state, a rank takes what its stage stores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch

from meshwright.errors import RunError, counted


class OwnStage:
    """A hook before it. kept: for each parameter of each group, as the optimizer was made, whether it is still there;
    none, where that is not known."""

    def __init__(self, kept: Sequence[Sequence[bool]] = ()) -> None:
        self.kept = kept

    def __call__(self, optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any] | None:
        groups = given["param_groups"]
        if _sizes(groups) == _sizes(optimizer.param_groups):
            return None
        if _sizes(groups) != [len(kept) for kept in self.kept]:
            raise RunError(
                f"optimizer.load_state_dict with the state of {counted(sum(_sizes(groups)), 'parameter')}, of which "
                f"this rank's stage has {sum(_sizes(optimizer.param_groups))}",
                "the state of this stage's parameters: a rank of a pipeline has no others",
                "make the optimizer and load its state before mw.parallelize, which hands each stage its part; state "
                "that mw.save wrote is loaded by mw.load",
            )
        own = [
            {**group, "params": list(compress(group["params"], kept))}
            for group, kept in zip(groups, self.kept, strict=True)
        ]
        numbers = {number for group in own for number in group["params"]}
        state = {number: one for number, one in given["state"].items() if number in numbers}
        return {**given, "param_groups": own, "state": state}


def _sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]
