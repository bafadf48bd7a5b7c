"""A plan in a notebook and at a prompt: short, and with names as text."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import meshwright as mw


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
