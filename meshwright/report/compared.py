"""Two plans side by side, as the page and `meshwright compare` show them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from os import PathLike, fspath
from textwrap import wrap
from typing import Any

from meshwright.errors import PlanError, counted, what_is
from meshwright.explain.diff import diff
from meshwright.explain.pace import is_host_bound
from meshwright.explain.recommend import devices, rate
from meshwright.explain.words import headline
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds

WIDTH = 56
"""Of a column, in characters."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Two plans: what each does, row by row, and what they decide differently. It shows itself, as text and in
    notebooks.

    names: of the two plans. rows: a name and both values. differs: one line each.
    """

    names: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]
    differs: tuple[str, ...]

    def __repr__(self) -> str:
        cells = [[wrap(cell, WIDTH) or [""] for cell in row] for row in (("", *self.names), *self.rows)]
        width = max(len(line) for row in cells for line in row[1])
        lines = [
            f"{name:<22} {mine:<{width}}  {theirs}".rstrip()
            for row in cells
            for name, mine, theirs in zip_longest(*row, fillvalue="")
        ]
        return "\n".join([*lines, "", "what they decide differently:", *(f"  {line}" for line in self.differs)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.names))
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.differs)
        return f"<table><tr>{head}</tr>{body}</table><p>What they decide differently:</p><ul>{lines}</ul>"


def compare(plan: Plan | str | PathLike[str], other: Plan | str | PathLike[str]) -> Comparison:
    """Two plans side by side, as `meshwright compare` prints them. Each is a Plan, or the name of its file."""
    plans = _read(plan), _read(other)
    names = tuple(f"plan {n}" if isinstance(one, Plan) else fspath(one) for n, one in ((1, plan), (2, other)))
    found = compared(plans[0], names[1], plans[1])
    return Comparison((names[0], names[1]), tuple(tuple(row) for row in found["rows"]), tuple(found["differs"]))


def _read(given: Plan | str | PathLike[str]) -> Plan:
    if isinstance(given, Plan):
        return given
    if not isinstance(given, str | PathLike):
        raise PlanError(f"{what_is(given)} as a plan", "a Plan, or the name of its file", "give two of these")
    if fspath(given).endswith((".json.gz", ".trace.json")):
        todo = f"run `meshwright compare plan.json {fspath(given)}` for a plan and a trace of its run"
        raise PlanError(f"the trace {fspath(given)}", "two plans", todo)
    return Plan.load(given)


def compared(plan: Plan, name: str, other: Plan) -> dict[str, Any]:
    """What another plan does, and what it decides differently."""
    return {
        "name": name,
        "headline": headline(other),
        "step_s": other.predicted.step_s,
        "peak_bytes": other.predicted.peak_bytes,
        "rows": rows(plan, other),
        "differs": [*_warned(plan, other), *(diff(plan, other) or "the two plans decide the same").splitlines()],
    }


def _warned(plan: Plan, other: Plan) -> list[str]:
    alike = plan.parameters.keys() == other.parameters.keys()
    return [] if alike else ["these are plans of DIFFERENT MODELS: neither is faster or smaller than the other"]


def rows(plan: Plan, other: Plan) -> list[list[str]]:
    """Name and both values, as text."""
    both = (plan, other)
    shown = {
        "model": [one.model or "(given in Python)" for one in both],
        "parallelised by": [headline(one) for one in both],
        "devices": [devices(one) for one in both],
        "global batch": [f"{one.batch} in {counted(one.microbatches, 'micro-batch')}" for one in both],
        "precision, optimizer": [f"{one.precision}, {one.optimizer}" for one in both],
        "step": [show_seconds(one.predicted.step_s) for one in both],
        "speed": [rate(one) for one in both],
        "forward": [show_seconds(one.predicted.forward_s) for one in both],
        "backward": [show_seconds(one.predicted.backward_s) for one in both],
        "communication": [show_seconds(one.predicted.communication_s) for one in both],
        "waiting for launches": [_launches(one) for one in both],
        "peak memory": [show_bytes(one.predicted.peak_bytes) for one in both],
        "activations, all layers": [show_bytes(one.predicted.resident_bytes) for one in both],
    }
    return [[name, *values] for name, values in shown.items()]


def _launches(plan: Plan) -> str:
    """What devices wait for their host's kernel launches; stages are priced with it."""
    found = plan.predicted
    return "in forward and backward" if found.stages and is_host_bound(found) else show_seconds(found.host_s)
