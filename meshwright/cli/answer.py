"""What `meshwright plan` prints: the recommendation, known recipes next to it, details."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.explain.recipes import Baseline
    from meshwright.plan import Plan


LITTLE = 0.001
"""Of a step: a smaller difference is not worth a word."""
MOST_PLAYED = 1 << 10
"""Stages times micro-batches up to which a step is played again for what its peak is made of."""
ROUGH = (
    "~: as the search counts it: too high, by up to a quarter in large models, by more in small ones; "
    "the row as a plan of its own has it exactly"
)


def answer(plan: Plan, program: Program, saved: str | None, more: Sequence[str] = ()) -> str:
    """Three lines, notes, and the command that runs the plan. more: notes that are not of the plan alone."""
    from meshwright.explain.figures import mfu
    from meshwright.explain.recommend import recommendation
    from meshwright.runtime.job.scripts import run_line

    lines = recommendation(plan, mfu(plan, program)) + [f"note: {note}" for note in more]
    first = "" if saved else "add -o plan.json, then "
    return "\n".join([*lines, f"run it: {first}{run_line(plan, saved or 'plan.json')}"])


def recipes(plan: Plan, others: Sequence[Baseline]) -> str:
    from meshwright.explain.pace import HOST_BOUND, is_host_bound, what_helps
    from meshwright.plan.units import show_bytes, show_seconds

    cut = any(text.startswith(("microbatch=", "microbatches=")) for text in plan.pins)
    number = "in as many micro-batches" if cut else "each in as many micro-batches as suit it"
    found = plan.predicted
    own = str(plan.microbatches)
    rows = [("", "step", "", "memory", "micro-batches", "")]
    fits = _fits(True, is_host_bound(found))
    rows.append(("this plan", show_seconds(found.step_s), "1.00x", show_bytes(found.peak_bytes), own, fits))
    for other in others:
        if other.step_s is None or other.peak_bytes is None:
            rows.append((other.name, "-", "", "-", "-", other.refusal))
            continue
        ratio = f"{other.step_s / found.step_s:.2f}x" if found.step_s else ""
        fits = _fits(other.fits, other.host_bound)
        cut_in = str(other.microbatches or "-")
        held = f"{'~' * other.rough}{show_bytes(other.peak_bytes)}"
        rows.append((other.title, show_seconds(other.step_s), ratio, held, cut_in, fits))
    wide = [max(len(row[place]) for row in rows) for place in range(5)]
    lines = [f"recipes people know, by the same prices, {number}, activations kept unless said otherwise:"]
    for name, *cells, fits in rows:
        shown = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide[1:], strict=True))
        lines.append(f"  {name:<{wide[0]}}  {shown}  {fits}".rstrip())
    lines += _room(plan)
    lines += _alike(others)
    lines += [ROUGH] if any(other.rough for other in others) else []
    if is_host_bound(found) or any(other.host_bound for other in others):
        lines.append(f"host-bound: {HOST_BOUND}; {what_helps(plan.compile)}")
    return "\n".join([*lines, *_as_plans(others)])


def _fits(fits: bool, host_bound: bool) -> str:
    return f"{'fits' if fits else 'does not fit'}{', host-bound' if host_bound else ''}"


def _alike(others: Sequence[Baseline]) -> list[str]:
    """Why two stages of ZeRO have the same figures."""
    first, second = (next((one for one in others if one.name == name), None) for name in ("ZeRO-1", "ZeRO-2"))
    if not first or not second or first.step_s is None or second.step_s is None or first.microbatches != 1:
        return []
    return [
        "ZeRO-1 and ZeRO-2 are the same in one micro-batch: each gradient is reduce-scattered as soon as it is whole; "
        "with more of them ZeRO-1 keeps whole gradients in between, ZeRO-2 a shard"
    ]


def _as_plans(others: Sequence[Baseline]) -> list[str]:
    """The pins that give each row that fits as a plan of its own."""
    from meshwright.pins.spelling import pin_options

    rows = [(other.title, pin_options(other.as_plan)) for other in others if other.fits and other.as_plan]
    wide = max((len(name) for name, _ in rows), default=0)
    staged = any(other.name.startswith("PP") and other.fits for other in others)
    return [
        *(["a row as a plan of its own:"] if rows else []),
        *(f"  {name:<{wide}}  {words}" for name, words in rows),
        *(
            ["  (PP rows: 1F1B, equal devices and work; --pin pp=2 alone lets the planner choose, often faster)"]
            if staged
            else []
        ),
    ]


def _room(plan: Plan) -> list[str]:
    """What `fits` means where a limit was given for one GPU."""
    from meshwright.explain.recommend import limit_bytes
    from meshwright.plan.units import show_bytes
    from meshwright.planner.one_device import room_bytes

    device, limit = plan.stages[0].mesh.device, limit_bytes(plan)
    room = device.limit_bytes(room_bytes(plan.memory_bytes, device), plan.headroom)
    if plan.world_size > 1 or room >= limit:
        return []
    lost = show_bytes(limit - room)
    return [f"fits: at most {show_bytes(room)}, since the allocator may lose {lost} of {show_bytes(limit)}"]


def pins_cost(plan: Plan, others: Sequence[Baseline], saved: str | None, cluster: str | None = None) -> str:
    """What the user's pins cost at least, by the recipes, which have not got them; and the command that tells it
    exactly. That plans again, so it is not run unasked. cluster: as it was named."""
    from meshwright.pins.parts import split_pin
    from meshwright.plan.origin import runs_code
    from meshwright.plan.units import show_seconds

    step_s, given = plan.predicted.step_s, ", ".join(plan.pins)
    faster = [one for one in others if one.fits and one.step_s and one.step_s < step_s]
    best = min(faster, key=lambda one: one.step_s or 0.0, default=None)
    fits = "is faster" if any(one.fits for one in others) else "fits"
    known = f"none of these recipes, which are without your pins ({given}), {fits}"
    if best is not None and best.step_s and step_s / best.step_s - 1 > LITTLE:
        more = f"{step_s / best.step_s - 1:.1%}"
        known = f"your pins ({given}) cost at least {more}: {best.title} takes {show_seconds(best.step_s)} without them"
    words = ["meshwright", "explain", saved or "plan.json"]
    words += [word for text in plan.pins for word in ("--what-if", f"{split_pin(text)[0]}=")]
    words += ["--model", plan.model] if runs_code(plan.model) else []
    words += ["--cluster", cluster] if cluster and cluster.endswith(".toml") else []
    return f"{known}\nwhat the best plan without them takes (plans again): {shlex.join(words)}"


def details(plan: Plan, program: Program) -> str:
    from meshwright.explain.describe import describe
    from meshwright.explain.figures import computes_in, speed, uncovered
    from meshwright.report.per_layer import at_peak

    quick = len(plan.stages) * plan.microbatches <= MOST_PLAYED
    held = at_peak(plan, program) if quick else []
    lines = ["details:", describe(plan, held), computes_in(plan, program), speed(plan, program), uncovered(program)]
    return "\n".join(line for line in lines if line)


def summary(
    plan: Plan,
    program: Program,
    others: Sequence[Baseline],
    plan_s: float,
    capture_s: float,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    from meshwright.explain.accuracy import expected_error
    from meshwright.explain.figures import figures
    from meshwright.explain.recommend import limit_bytes, notes
    from meshwright.explain.words import headline
    from meshwright.rules import rule_coverage

    found, tiers = plan.predicted, rule_coverage(program)
    return {
        "recommendation": headline(plan),
        "expected_error": expected_error(plan),
        "notes": [*notes(plan), *more],
        "limit_bytes": limit_bytes(plan),
        "plan_seconds": plan_s,
        "capture_seconds": capture_s,
        "optimality_gap": found.gap,
        "solver_step_seconds": found.step_s,
        "predicted": figures(plan, program),
        "mesh": {axis.name: axis.size for axis in plan.stages[0].mesh.axes},
        "chosen": _chosen(plan),
        "baselines": [
            {
                "name": other.name,
                "step_seconds": other.step_s,
                "peak_bytes": other.peak_bytes,
                "fits": other.fits,
                "peak_is_rough": other.rough,
                "microbatches": other.microbatches,
                "host_bound": other.host_bound,
                "pins": list(other.as_plan),
            }
            | ({"why": other.why or other.refusal} if other.step_s is None else {})
            for other in others
        ],
        "fallback_ops": list(tiers["fallback"]),
        "rule_tiers": {name: list(targets) for name, targets in tiers.items()},
        "search": [asdict(event) for event in plan.search_log],
    }


def _chosen(plan: Plan) -> dict[str, Any]:
    """Degrees by name, of a pipeline its first stage's; and of a pipeline what each stage is."""
    found: dict[str, Any] = {axis.name: axis.size for axis in plan.stages[0].mesh.axes}
    found |= {"microbatches": plan.microbatches, "pp": len(plan.groups), "schedule": plan.schedule}
    if len(plan.stages) > 1:
        found["bubble"] = plan.predicted.bubble
        found["stages"] = [
            {
                "first": stage.first,
                "end": stage.end,
                "mesh": {axis.name: axis.size for axis in stage.mesh.axes},
                "device": stage.mesh.device.name,
            }
            for stage in plan.stages
        ]
    return found
