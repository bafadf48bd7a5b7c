"""How far a predicted step may be from the clock: what was measured, and on which device."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps that were run and held against their predictions: the largest miss either way, as shares of the step."""

    least: float
    most: float
    what: str


STEPS = {
    "H200-SXM-141GB": Measured(
        -0.08,
        0.08,
        "64 planned steps of 12 models on one H200, eager and compiled, bf16 and fp32, with the shipped profile and a "
        "host at its pace: mean error 2.9 %. On a host that launched kernels at 0.6 of that pace short bf16 steps took "
        "up to 2.5 times as long. `meshwright calibrate` measures yours",
    ),
}
"""By device profile (`bench/step_accuracy.py`; docs/calibrate.md)."""


def expected_error(plan: Plan) -> str:
    """In words, for next to the step time; never a figure that nobody measured."""
    device = plan.stages[0].mesh.device
    found = STEPS.get(device.name)
    if found is None:
        return f"error unknown: no step was measured on {device.name}"
    beyond = "" if plan.world_size == 1 else "; over several GPUs nothing was measured"
    return f"predictions were off by {found.least:+.0%} to {found.most:+.0%} on this device{beyond}"


def sources(plan: Plan) -> list[tuple[str, str]]:
    """What the expected error rests on, a row each."""
    names = dict.fromkeys(stage.mesh.device.name for stage in plan.stages)
    return [(name, STEPS[name].what if name in STEPS else "no step was measured") for name in names]
