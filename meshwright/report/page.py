"""`plan.html`: one self-contained file, drawn from the plan's data; it needs no network."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError, PlanError
from meshwright.explain.recipes import Baseline, baselines
from meshwright.plan import Plan
from meshwright.plan.origin import program_here
from meshwright.plan.recent import recent
from meshwright.predict.simulated import simulate_plan
from meshwright.report.compared import compared
from meshwright.report.data import page_data
from meshwright.runtime.job.scripts import run_line

KINDS = (".html", ".css", ".js")
"""The page's parts; scripts are joined in the order of their names."""


def report(plan: Plan, path: Path, program: Program | None = None) -> None:
    """`plan.report`: what the page needs is looked for here."""
    found = program or recent(plan.fingerprint, plan.batch)
    if found is None:
        found, _ = program_here(plan, str(path))
    write_report(plan, path, found, others=() if found is None else known_recipes(plan, found))


def known_recipes(plan: Plan, program: Program) -> Sequence[Baseline]:
    """None where the plan's cluster is not known by its name."""
    try:
        cluster = load_cluster(plan.cluster)
    except MeshwrightError:
        return ()
    return baselines(
        program, cluster, plan.optimizer, plan.precision, plan.memory_bytes, plan.pins, headroom=plan.headroom
    )


def write_report(
    plan: Plan,
    path: str | os.PathLike[str],
    program: Program | None = None,
    *,
    others: Sequence[Baseline] = (),
    search: Sequence[tuple[float, str]] = (),
    against: Mapping[str, Plan] | None = None,
    saved: str = "plan.json",
) -> None:
    """Write the page.

    program: what the plan is of; without it the page has no layers and no timeline.
    others: known recipes to compare with. search: seconds and what was found then. against: plans next to which this
    one is shown, by their names. saved: the plan's file, for the command that runs it.
    """
    timeline = None if program is None else simulate_plan(plan, program)
    data = page_data(plan, program, timeline, others) | {"launch": run_line(plan, saved)}
    data["search"] = [[seconds, text] for seconds, text in search]
    data["against"] = [compared(plan, name, other) for name, other in (against or {}).items()]
    text = page(data)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", "a writable path", "name another") from error


def page(data: dict[str, Any]) -> str:
    """The page of this data. Names come from users: they are text, never markup."""
    parts = files("meshwright.report").joinpath("parts")
    read = {one.name: one.read_text(encoding="utf-8") for one in parts.iterdir() if one.name.endswith(KINDS)}
    script = "".join(text for name, text in sorted(read.items()) if name.endswith(".js"))
    packed = json.dumps(_short(data), separators=(",", ":"), allow_nan=False)
    return Template(read["page.html"]).substitute(
        title=html.escape(f"{data['title']} on {data['cluster']}"),
        style=read["page.css"],
        script=script,
        data=packed.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    )


def _short(value: Any) -> Any:
    """Numbers with five digits: more of them would not be seen."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list | tuple) else value
