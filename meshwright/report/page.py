"""`plan.html`: one self-contained file, drawn from the plan's data; it needs no network."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.report.data import page_data
from meshwright.solve.baselines import Baseline
from meshwright.solve.simulated import simulate_plan


def write_report(
    plan: Plan,
    path: str | os.PathLike[str],
    program: Program | None = None,
    *,
    others: Sequence[Baseline] = (),
    launch: str = "",
) -> None:
    """Write the page. program: what the plan is of; without it the page has no layers and no timeline. others: plans to
    compare with. launch: the command that runs the plan."""
    timeline = None if program is None else simulate_plan(plan, program)
    text = page(page_data(plan, program, timeline, others) | {"launch": launch})
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", "a writable path", "name another") from error


def page(data: dict[str, Any]) -> str:
    """The page of this data. Names come from users: they are text, never markup."""
    parts = files("meshwright.report")
    read = {name: parts.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    packed = json.dumps(_short(data), separators=(",", ":"), allow_nan=False)
    return Template(read["page.html"]).substitute(
        title=html.escape(f"{data['title']} on {data['cluster']}"),
        style=read["page.css"],
        script=read["page.js"],
        data=packed.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    )


def _short(value: Any) -> Any:
    """Numbers with five digits: more of them would not be seen."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list | tuple) else value
