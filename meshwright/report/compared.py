"""Two plans beside each other, as the page and `meshwright compare` show them."""

from __future__ import annotations

from typing import Any

from meshwright.explain.diff import diff
from meshwright.explain.recommend import devices, rate
from meshwright.explain.words import headline
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds


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
        "global batch": [f"{one.batch}" for one in both],
        "precision, optimizer": [f"{one.precision}, {one.optimizer}" for one in both],
        "step": [show_seconds(one.predicted.step_s) for one in both],
        "speed": [rate(one) for one in both],
        "forward": [show_seconds(one.predicted.forward_s) for one in both],
        "backward": [show_seconds(one.predicted.backward_s) for one in both],
        "communication": [show_seconds(one.predicted.communication_s) for one in both],
        "peak memory": [show_bytes(one.predicted.peak_bytes) for one in both],
        "activations": [show_bytes(one.predicted.resident_bytes) for one in both],
    }
    return [[name, *values] for name, values in shown.items()]
