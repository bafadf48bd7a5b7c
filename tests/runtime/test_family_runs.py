"""Every family under every plan on 1, 2, 3, 4, 6 and 8 ranks computes what the plain model computes.

In float64 where a model can be, so that nothing but a fault can differ: loss, every gradient, running statistics, and
the collectives that were planned. The quick tests do this for small models: `test_equality.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from families import FAMILIES, SINGLE, family
from processes import forked

from meshwright.capture import Program, capture
from meshwright.cluster import load_cluster
from meshwright.generate.program import Generated, generate
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

pytestmark = pytest.mark.full

Pins = Callable[[int], tuple[str, ...]]
ALONE: dict[str, Pins] = {
    "chosen": lambda n: ("pp=1",),
    "data": lambda n: (f"mesh={n}", f"dp={n}", "zero=0"),
    "zero 3": lambda n: (f"mesh={n}", f"dp={n}", "zero=3"),
}
ONE_AXIS: dict[str, Pins] = {
    "zero 1": lambda n: (f"mesh={n}", f"dp={n}", "zero=1"),
    "zero 2": lambda n: (f"mesh={n}", f"dp={n}", "zero=2"),
    "tensor": lambda n: (f"mesh={n}", f"tp={n}", "zero=0", "sp=off"),
    "sequence": lambda n: (f"mesh={n}", f"tp={n}", "zero=0", "sp=on"),
    "split": lambda n: ("split=matmul", "pp=1"),
}
TWO_AXES: dict[str, Pins] = {
    "data x tensor": lambda n: (f"mesh={n // 2}x2", f"dp={n // 2}", "tp=2", "zero=0"),
    "sharded x tensor": lambda n: (f"mesh={n // 2}x2", f"dp={n // 2}", "tp=2", "zero=3"),
    "hybrid": lambda n: (f"mesh={n // 2}x2", f"dp={n}", "zero=3:2"),
}
KINDS = ALONE | ONE_AXIS | TWO_AXES
SIZES = (1, 2, 3, 4, 6, 8)


def cases() -> Iterator[tuple[str, int, str]]:
    """Baselines by hand, the planned one, and the planned one that splits every matmul."""
    for size in SIZES:
        kinds = [*ALONE, *(ONE_AXIS if size > 1 else ()), *(TWO_AXES if size > 3 else ())]
        for kind in kinds:
            yield from ((name, size, kind) for name in FAMILIES)


@cache
def program_of(name: str) -> Program:
    model, batch, reference = family(name)
    return capture(model, batch, reference.family.loss)


@cache
def plain(name: str) -> dict[str, Any]:
    model, batch, _ = family(name)
    output = model(**batch)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    loss.backward()
    gradients = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
    kept = model.state_dict().keys()
    return {"loss": loss.item(), "gradients": gradients, "buffers": dict(model.named_buffers()), "kept": kept}


def compare(rank: int, name: str, plan: Plan, made: Generated) -> None:
    """On one rank; `made`: what every rank would generate, once for all of them, as the Program is captured once."""
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch, reference = family(name)
    with (
        patch("meshwright.runtime.trainer.capture", lambda *_, **__: program_of(name)),
        patch("meshwright.runtime.step.parts.generate", lambda *_, **__: made),
    ):
        trainer = parallelize(model, plan, reference.family.loss)
    with record() as log:
        loss = trainer.step({key: batch[key][where] for key, where in trainer.data_slice().items()})
    found = {key: p.grad.full_tensor() for key, p in trainer.named_parameters() if p.grad is not None}
    true, loose = plain(name), 1e-6 if name in SINGLE else 1e-9
    assert loss.item() == pytest.approx(true["loss"], rel=loose)
    assert found.keys() == true["gradients"].keys()
    largest = max(gradient.abs().max() for gradient in true["gradients"].values())
    for key, gradient in true["gradients"].items():
        error = (found[key] - gradient).abs().max()
        assert error <= max(10 * loose * gradient.abs().max(), loose / 1000 * largest), (key, error)
    kept = trainer.state_dict()
    assert kept.keys() == true["kept"]
    for key, value in true[
        "buffers"
    ].items():  # those that a model leaves out of its state are computed with all the same
        own = kept[key] if key in kept else trainer._interpreter.buffers[key]
        assert torch.allclose(own, value, rtol=loose, atol=1e-12), key
    assert Counter(log) == Counter(plan.predicted.collectives)


@pytest.mark.parametrize(("name", "size", "kind"), list(cases()))
def test_a_family_equals_itself(name: str, size: int, kind: str) -> None:
    plan = make_plan(program_of(name), load_cluster(f"local:{size}"), pins=KINDS[kind](size))
    plain(name)
    forked(size, compare, name, Plan.from_json(plan.to_json()), generate(program_of(name), plan))
