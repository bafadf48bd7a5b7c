"""Logging is under `meshwright`: quiet unless asked for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import meshwright as mw


def loss(y: Tensor, x: Tensor) -> Tensor:
    return (y - x).square().mean()


def test_planning_is_logged_if_asked(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = torch.nn.Linear(8, 8), (torch.zeros(4, 8),)
    monkeypatch.setattr("meshwright.planner.plan_model.AFTER_S", 600.0)  # as if it were quick
    mw.plan(model, batch, loss=loss, pins=None)
    assert "".join(capsys.readouterr()) == ""
    with caplog.at_level(logging.INFO, "meshwright"):
        mw.plan(model, batch, loss=loss)
    assert any(record.name == "meshwright.plan" and "step" in record.message for record in caplog.records)
    capsys.readouterr()
    monkeypatch.setattr("meshwright.planner.plan_model.AFTER_S", 0.0)  # as if it took long
    mw.plan(model, batch, loss=loss)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[0].startswith("meshwright: ")
    assert lines[0].endswith(" s  capturing Linear")
    assert " s  searching plans of " in lines[1]
    assert lines[1].endswith(" on 1 device")
    monkeypatch.setenv("RANK", "1")  # of several ranks one tells
    mw.plan(model, batch, loss=loss)
    assert capsys.readouterr().err == ""


def test_a_run_is_logged_if_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, batch = torch.nn.Linear(8, 8), (torch.ones(4, 8),)
    plan = mw.plan(model, batch, loss=loss)
    with caplog.at_level(logging.DEBUG, "meshwright"):
        trainer = mw.parallelize(model, plan, loss)
        optimizer = torch.optim.AdamW(model.parameters())
        trainer.step(batch, global_batch=True)
        optimizer.step()
        mw.save(trainer, optimizer, tmp_path)
        mw.load(trainer, optimizer, tmp_path)
    own = [record for record in caplog.records if record.name.startswith("meshwright.")]
    told = [(record.name, record.levelname, record.message) for record in own]
    expected = [
        ("meshwright.run", "INFO", "rank 0 of 1, stage 0, on cpu"),
        ("meshwright.run", "DEBUG", "step 1: "),
        ("meshwright.checkpoint", "INFO", f"step 1 saved in {tmp_path / 'step-000001'}"),
        ("meshwright.checkpoint", "INFO", f"going on from {tmp_path / 'step-000001'}, step 1, saved by 1 rank, on 1"),
    ]
    assert len(told) == len(expected)
    for (name, level, message), (logger, wanted, begins) in zip(told, expected, strict=True):
        assert (name, level) == (logger, wanted)
        assert message.startswith(begins)


@pytest.mark.parametrize(("level", "lines"), [("", 0), ("warning", 0), ("info", 1)])
def test_an_environment_variable_asks_too(level: str, lines: int) -> None:
    script = "import logging, meshwright; logging.getLogger('meshwright.run').info('here')"
    environment = os.environ | {"MESHWRIGHT_LOG": level}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr.count("meshwright.run here") == lines
