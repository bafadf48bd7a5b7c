"""Logging is under `meshwright`: quiet unless asked for."""

from __future__ import annotations

import logging

import pytest
import torch

import meshwright as mw


def test_planning_is_logged_if_asked(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    model, batch = torch.nn.Linear(8, 8), (torch.zeros(4, 8),)
    mw.plan(model, batch, loss=lambda y, x: (y - x).square().mean())
    assert "".join(capsys.readouterr()) == ""
    with caplog.at_level(logging.INFO, "meshwright"):
        mw.plan(model, batch, loss=lambda y, x: (y - x).square().mean())
    assert any(record.name == "meshwright.plan" and "step" in record.message for record in caplog.records)
