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
        -0.60,
        0.16,
        "54 planned steps of 11 models on one H200, eager and compiled, bf16 and fp32, with the shipped profile: mean "
        "error 11 %; fp32 -16 to +16 %. Short bf16 steps were predicted up to 60 % too fast, because its host "
        "launched kernels at 0.6 of the profile's pace. `meshwright calibrate` measures yours",
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
