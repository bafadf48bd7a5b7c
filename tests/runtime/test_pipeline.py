"""Pipelines compute what one process computes: loss, gradients and three steps of an optimizer, on gloo processes.

In float64 where a model can be, so that nothing but a fault can differ. The quick cases cover each family, schedule and
way of combining once; `make test-all` takes the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pipelines import compare, compare_traffic, piped, program_of, trained
from processes import GlooPool

from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.planner.pipeline.by_hand import recomputing

TP, DATA, ZERO2, ZERO3 = ("tp=2",), ("dp=2", "zero=0"), ("dp=2", "zero=2"), ("dp=2", "zero=3")

QUICK: dict[str, dict[str, Any]] = {
    "gpt, tied over two stages, in halves, recomputing": {
        "name": "gpt", "sizes": (1, 1), "schedule": "zero-bubble", "again": True,
    },
    "gpt on unequal meshes, tensor parallel and ZeRO-2": {
        "name": "gpt", "sizes": (2, 1), "pins": (ZERO2, ()), "schedule": "gpipe", "again": True,
    },
    "t5, whose encoder every decoder layer reads": {"name": "t5", "sizes": (1, 1, 1), "microbatches": 3},
    "unet with long skips, routed_via_stages": {
        "name": "unet", "sizes": (1, 1, 1), "microbatches": 2, "schedule": "gpipe", "routed_via_stages": True,
    },
    "llama interleaved": {"name": "llama", "sizes": (1, 1), "schedule": "interleaved", "rounds": 2},
    "resnet in micro-batches, as asked for": {"name": "resnet", "sizes": (1, 1), "microbatches": 2, "plain": 2},
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {"microbatches": 4},
    "llama": {"microbatches": 4},
    "llama tied": {"microbatches": 4},
    "hf gpt2": {"microbatches": 4},
    "t5": {"microbatches": 3},
    "unet": {"microbatches": 2},
    "deep resnet": {"microbatches": 2, "plain": 2},
    "deep moe": {"microbatches": 2, "plain": 2},
}
SKIP = ("unet",)
"""Those with values that skip stages."""
SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "searched")
SHAPES: dict[str, dict[str, Any]] = {
    "1+1": {"sizes": (1, 1)},
    "1+1+1": {"sizes": (1, 1, 1)},
    "1+1+1+1": {"sizes": (1, 1, 1, 1)},
    "2+1, tensor": {"sizes": (2, 1), "pins": (TP, ())},
    "1+2+1, sharded": {"sizes": (1, 2, 1), "pins": ((), ZERO3, ())},
    "2+2, sharded and tensor": {"sizes": (2, 2), "pins": (ZERO3, TP)},
    "2+2, sharded states and data": {"sizes": (2, 2), "pins": (ZERO2, DATA)},
    "1+2+1, routed": {"sizes": (1, 2, 1), "pins": ((), DATA, ()), "schedule": "1f1b", "routed_via_stages": True},
    "1+1, interleaved": {"sizes": (1, 1), "schedule": "interleaved", "rounds": 2},
    "2+2, interleaved, sharded and tensor": {
        "sizes": (2, 2), "pins": (ZERO3, TP), "schedule": "interleaved", "rounds": 2,
    },
}  # fmt: skip


def matrix() -> Iterator[Any]:
    for name, case in QUICK.items():
        yield pytest.param(case, id=name, marks=[] if case["name"] not in ("unet", "llama") else pytest.mark.full)
    for family, own in FAMILIES.items():
        for shape, given in SHAPES.items():
            if given.get("routed_via_stages") and family not in SKIP:
                continue
            for schedule in (given["schedule"],) if "schedule" in given else SCHEDULES:
                for again in (False, True):
                    case = {"name": family} | own | given | {"schedule": schedule, "again": again}
                    label = f"{family}, {shape}, {schedule}{', recomputing' if again else ''}"
                    yield pytest.param(case, id=label, marks=pytest.mark.full)


def made(case: dict[str, Any]) -> Plan:
    plan = piped(**{key: value for key, value in case.items() if key not in ("again", "plain")})
    return recomputing(plan, program_of(case["name"])) if case.get("again") else plan


@pytest.mark.parametrize("case", list(matrix()))
def test_a_pipeline_computes_what_one_process_computes(case: dict[str, Any], ranks: Callable[[int], GlooPool]) -> None:
    if len(case["sizes"]) * case.get("rounds", 1) > len(program_of(case["name"]).segments):
        with pytest.raises(PlanError, match="stages"):
            made(case)
        return
    plan = made(case)
    found = ranks(sum(case["sizes"])).run(trained, case["name"], plan.to_json())
    compare(case["name"], found, case.get("plain", 1))
    compare_traffic(plan, case["name"], found)
