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
        -0.20,
        1.32,
        "60 planned steps of 12 models on one H200, eager and compiled, bf16 and fp32: mean error 11 %; without "
        "ConvNeXt in bf16, predicted up to 132 % too slow, -20 to +5 %. Prices of eager steps have been mended since "
        "and not all been measured again",
    ),
}
"""By device profile (`bench/step_accuracy.py`; docs/calibrate.md)."""


def expected_error(plan: Plan) -> str:
    """In words, for beside the step time; never a figure that nobody measured."""
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
