"""What a forward reads inside of objects: a change between steps is refused where it changes what is computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.capture.tracing.code import names_reached
from meshwright.errors import CaptureWarning, RunError
from tests.capture import helpers_elsewhere

SETTINGS = {"scale": 1.0}


class Schedule:
    """An object that is called."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0

    def __call__(self) -> float:
        return self.value


SHARED = Schedule()


class Configured(nn.Module):
    """Reads a configuration, lists, a plain tensor and a dict outside; its forward does not read its history."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.config = nn.Linear(4, 3), SimpleNamespace(scale=1.0, inner={"power": [1.0]}, name="a")
        self.factors, self.shift, self.extra = [1.0, 2.0], torch.zeros(3), None
        self.history: list[float] = []
        self.schedule, self.held = Schedule(), partial(dict.get, {"scale": 1.0}, "scale")

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x) * self.config.scale * self.factors[0] + self.shift
        if self.extra is not None:
            found = found + self.extra
        found = found * self.schedule() * self.held() * SHARED() * helpers_elsewhere.SCALE
        return self.powered(found) * SETTINGS["scale"] * float(os.environ.get("SCALE_OF_TESTS", "1.0"))

    def powered(self, x: Tensor) -> Tensor:
        power: float = self.config.inner["power"][0]
        return x * power

    def log(self, value: float) -> None:
        self.history.append(value)


WEIGHTS = [1.0]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean() * WEIGHTS[0]


@cache
def planned() -> mw.Plan:
    return mw.plan(Configured(), a_batch(), loss=loss_of, cluster="local:1")


def a_batch() -> tuple[Tensor, Tensor]:
    return torch.ones(4, 4), torch.zeros(4, 3)


def adopted() -> tuple[Configured, mw.Trainer, tuple[Tensor, Tensor]]:
    own = Configured()
    return own, mw.parallelize(own, planned(), loss_of), a_batch()


Change = Callable[[Configured, float], Any]


def set_extra(own: Configured, value: float) -> None:
    own.extra = torch.ones(3) if value > 1 else None  # type: ignore[assignment]


def set_schedule(own: Configured, value: float) -> None:
    own.schedule.value = value


def set_shared(own: Configured, value: float) -> None:
    SHARED.value = value


def set_helper(own: Configured, value: float) -> None:
    helpers_elsewhere.SCALE = value


CHANGES: list[tuple[Change, str]] = [
    (set_schedule, "'schedule' of the model was changed"),
    (lambda own, value: own.held.args[0].update(scale=value), "'held' of the model was changed"),
    (set_shared, "SHARED of .* was changed"),
    (set_helper, "SCALE of .*helpers_elsewhere was changed"),
    (lambda own, value: vars(own.config).update(scale=value), "'config' of the model was changed"),
    (lambda own, value: own.config.inner["power"].__setitem__(0, value), "'config' of the model was changed"),
    (lambda own, value: own.factors.__setitem__(0, value), "'factors' of the model was changed"),
    (lambda own, value: own.shift.fill_(value - 1.0), "'shift' of the model was changed"),
    (lambda own, value: own.shift.data.fill_(value - 1.0), "'shift' of the model was changed"),
    (lambda own, value: os.environ.update(SCALE_OF_TESTS=str(value)), "the environment .* was changed"),
    (set_extra, "'extra' of the model was changed"),
    (lambda own, value: SETTINGS.update(scale=value), "SETTINGS of .* was changed"),
    (lambda own, value: WEIGHTS.__setitem__(0, value), "WEIGHTS of .* was changed"),
]


def test_a_change_that_matters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE_OF_TESTS", "1.0")
    own, trainer, batch = adopted()
    before = trainer.step(batch).item()
    for change, words in CHANGES:
        change(own, 2.0)
        with torch.no_grad():
            own(batch[0])  # whatever its forward changes, this is not among it
        with pytest.raises(RunError, match=words):
            trainer.step(batch)
        change(own, 1.0)
        assert trainer.step(batch).item() == before


class Weighted:
    """A loss of a user's own, called or by its method, with a weight of the object and one of the class."""

    every = 1.0

    def __init__(self) -> None:
        self.own = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean() * self.own

    def by_class(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean() * Weighted.every


def losses() -> list[tuple[Callable[..., Tensor], Callable[[], object]]]:
    """Losses that read something, and what changes it."""
    space, weighted, smooth = SimpleNamespace(weight=1.0), Weighted(), nn.SmoothL1Loss()
    return [
        (lambda output, target: (output - target).abs().mean() * space.weight, lambda: vars(space).update(weight=2.0)),
        (lambda output, target: weighted(output, target), lambda: vars(weighted).update(own=2.0)),
        (weighted, lambda: vars(weighted).update(own=3.0)),
        (weighted.__call__, lambda: vars(weighted).update(own=4.0)),
        (weighted.by_class, lambda: setattr(Weighted, "every", 2.0)),
        (lambda output, target: Weighted.every * (output - target).mean(), lambda: setattr(Weighted, "every", 3.0)),
        (lambda output, target: smooth(output, target), lambda: vars(smooth).update(beta=0.5)),
    ]


@pytest.mark.parametrize("which", range(7))
def test_what_a_loss_reads_is_looked_at(which: int) -> None:
    loss, change = losses()[which]
    own, batch = nn.Linear(4, 3), (torch.ones(4, 4), torch.zeros(4, 3))
    trainer = mw.parallelize(own, mw.plan(own, batch, loss=loss, cluster="local:1"), loss)
    trainer.step(batch)
    change()
    with pytest.raises(RunError, match="was changed since"):
        trainer.step(batch)


class Classed(nn.Linear):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean() * self.factor


def test_what_a_models_class_holds_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    own, batch = Classed(4, 3), {"x": torch.ones(4, 4)}
    trainer = mw.parallelize(own, mw.plan(own, batch, cluster="local:1"))
    trainer.step(batch)
    monkeypatch.setattr(Classed, "factor", 2.0)
    with pytest.raises(RunError, match="'factor' of class Classed was changed"):
        trainer.step(batch)


def test_gradients_that_wait_for_an_optimizer_are_refused() -> None:
    own, batch = Classed(4, 3), {"x": torch.ones(4, 4)}
    plan = mw.plan(own, batch, cluster="local:1")
    own(**batch).backward()
    with pytest.raises(RunError, match="'weight' and 1 more have gradients"):
        mw.parallelize(own, plan)
    own.zero_grad(set_to_none=False)
    assert mw.parallelize(own, plan).step(batch).isfinite()


def test_changes_that_do_not_matter_are_accepted() -> None:
    own, trainer, batch = adopted()
    for step in range(3):
        own.log(trainer.step(batch).item())
        own.factors[1] += float(step == 1)
        with trainer.gathered() as whole:
            whole.config.name += "b"
    own.config.name = "c"
    with pytest.warns(CaptureWarning, match="'config' of the model changes between steps"):
        trainer.step(batch)
    assert trainer.steps == 4


def test_only_what_a_forward_may_reach_is_looked_at() -> None:
    found = names_reached(Configured(), loss_of)
    assert {"config", "factors", "shift", "extra", "SETTINGS", "WEIGHTS"} <= found
    assert "history" not in found
