"""A plan in a notebook and at a prompt: short, and with names as text."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import meshwright as mw
from meshwright.planner.progress import Progress


def test_a_plan_is_short_at_a_prompt_and_in_a_notebook(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        model, batch = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), (torch.empty(32, 64),)
    plan = mw.plan(model, batch, cluster="local:2", loss=lambda y, x: (y - x).square().mean(), pins=("pp=1", "dp=2"))
    named = replace(plan, model="<b>mine</b>" + "x" * 900)
    assert len(repr(named)) < 500
    assert "step" in repr(named)
    shown = named._repr_html_()
    assert "<b>mine" not in shown
    assert "&lt;b&gt;mine" in shown
    assert "memory against the limit" in shown
    plan.report(tmp_path / "plan.html")  # the model that was planned last is known, and so are its layers
    text = (tmp_path / "plan.html").read_text()
    assert '"layers":[{"name":' in text
    assert '"name":"DDP"' in text


def test_a_trainer_says_in_a_line_what_it_trains() -> None:
    model, batch = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.randn(4, 8),)
    loss = lambda y, x: (y - x).square().mean()  # noqa: E731
    trainer = mw.parallelize(model, mw.plan(model, batch, loss=loss), loss)
    trainer.step(batch)
    assert repr(trainer).startswith("<Trainer of Sequential: one device")
    assert repr(trainer).endswith("rank 0 of 1 on cpu, global batch 4, 1 step taken>")


def test_errors_are_one_message_in_a_notebook() -> None:
    """IPython asks an exception for `_render_traceback_`."""
    with pytest.raises(mw.MeshwrightError) as raised:
        mw.plan("gpt", memory="80")
    assert raised.value._render_traceback_() == [f"PlanError: {raised.value}"]


def test_ctrl_c_at_a_prompt_gives_the_best_plan_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a kernel does it: SIGINT when the first plan is told. In scripts it is a KeyboardInterrupt."""
    model = "gpt?layers=2&hidden=64&heads=4&ffn=128&vocab=128&seq=32"
    tell, told = Progress.found, list[str]()

    def found(self: Progress, line: str) -> None:
        tell(self, line)
        told.append(line)
        if len(told) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(Progress, "found", found)
    monkeypatch.setattr("meshwright.planner.plan_model.AFTER_S", 0.0)
    before = signal.getsignal(signal.SIGINT)
    plan = mw.plan(model, cluster="h100:8", global_batch=64)
    assert told
    assert "stopping with the best plan so far" in capsys.readouterr().err
    assert plan.predicted.gap == 1.0, "no bound is known"
    assert signal.getsignal(signal.SIGINT) is before
    assert mw.plan(model).predicted.gap < 1.0, "the next search is not stopped"
