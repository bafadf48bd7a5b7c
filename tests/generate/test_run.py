"""Segments joined to a run compute what they compute apart, and keep what they keep apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from captures import capture
from small_models import small_model
from torch import Tensor, nn

import meshwright as mw
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.generate.runs import chains, divided
from meshwright.plan import Plan
from meshwright.planner.memory.plans import one_device_plan
from meshwright.planner.plan import make_plan
from meshwright.price.parameter import Setting
from meshwright.runtime.fit import fit_plan, this_device
from meshwright.runtime.step import parts
from meshwright.runtime.step.units import units
from meshwright.schedule.of_plan import plan_lists

CPU = torch.device("cpu")
Found = tuple[float, dict[str, Tensor], dict[str, Tensor], int, Any]


def stepped(name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch, most: int | None, dtype: str = "float64") -> Found:
    """(loss, gradients, buffers, bytes held, runs); most: ops of a run, None for segments apart. Nothing compiles."""

    def joined(plan: Plan, program: Program, stage: Any, place: Any) -> list[tuple[int, int]]:
        found = chains(plan, program, stage, place.instructions) if most else []
        ops = [len(program.graphs[segment.graph].ops) for segment in program.segments]
        kinds = [segment.graph for segment in program.segments]
        return [run for a, b in found for run in divided((a, b), kinds[a:b], ops[a:b], most or 0)]

    monkeypatch.setattr(parts, "_joined", joined)
    model, batch = small_model(name, dtype)
    trainer = mw.parallelize(model, plan)
    trainer.count_bytes()
    loss = trainer.step(batch).item()
    gradients = {key: p.grad.to_local().clone() for key, p in trainer.named_parameters() if p.grad is not None}
    buffers = {key: t for key, t in trainer.state_dict().items() if key not in gradients}
    return loss, gradients, buffers, trainer.held_bytes, trainer._interpreter.parts[0].generated.runs


def assert_alike(one: Found, other: Found) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-13)
    for found, wanted in zip(one[1:3], other[1:3], strict=True):
        assert found.keys() == wanted.keys()
        for key, tensor in wanted.items():
            torch.testing.assert_close(found[key], tensor, rtol=1e-11, atol=1e-13)
    assert one[3] == other[3], "a run keeps what its segments keep"


@pytest.mark.parametrize("microbatches", [1, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["gpt", "resnet", pytest.param("llama", marks=pytest.mark.full)])
def test_a_run_is_its_segments(name: str, microbatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture(*small_model(name, "float64"))
    pins = ("microbatches=3",) if microbatches == 3 else ()
    plan = make_plan(program, load_cluster("local:1"), pins=pins)
    apart = stepped(name, plan, monkeypatch, None)
    whole = stepped(name, plan, monkeypatch, 10**6)
    embeds = name != "resnet"  # an embedding's gradient would lie there all through backward
    assert [(run.first, run.end) for run in whole[4]] == [(int(embeds), len(program.segments))]
    assert_alike(whole, apart)


def test_runs_of_a_plan_that_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = small_model("llama", "float64")
    with pytest.raises(PlanError) as caught:
        fit_plan(model, batch, 1024, device=this_device(), method="flat")
    least = int(caught.value.expected.split(" bytes")[0].removeprefix("at least ").replace(",", ""))
    plan = fit_plan(model, batch, least, device=this_device(), method="flat")
    assert plan.recomputes
    whole, apart = stepped("llama", plan, monkeypatch, 10**6), stepped("llama", plan, monkeypatch, None)
    assert whole[4]
    assert_alike(whole, apart)


def test_a_run_recomputes_from_what_its_segments_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm is computed again from the layer's input. In a run the layer before makes that: it is kept there too, and
    not computed again by one more product."""
    program = capture(*small_model("llama", "bfloat16"), precision="bf16")
    plan = one_device_plan(program, load_cluster("local:1").mesh((1,)), Setting(precision="bf16"))
    norm = ("rms_norm~0", "rms_norm~4", "rms_norm~5")
    layers = [replace(one, recompute=norm, keep=("x",)) for one in plan.choices if "rms_norm" in one.strategies]
    plan = replace(plan, choices=(*(one for one in plan.choices if "rms_norm" not in one.strategies), *layers))
    whole, apart = (stepped("llama", plan, monkeypatch, most, "bfloat16") for most in (10**6, None))
    assert whole[3] == apart[3]
    again = [name for run in whole[4] for name in run.pair.cut.again]
    assert again
    assert not [name for name in again if "linear" in name]


def test_alike_runs_share_a_graph() -> None:
    """Four alike layers as two runs of two: one graph."""
    program = capture(Layers(), {"x": torch.randn(6, 16)})
    plan = one_device_plan(program, load_cluster("local:1").mesh((1,)))
    ops = [len(program.graphs[segment.graph].ops) for segment in program.segments]
    kinds = [segment.graph for segment in program.segments]
    stretch = [i for i, kind in enumerate(kinds) if kinds.count(kind) > 2]
    assert len(stretch) >= 4
    (chain,) = chains(plan, program, plan.stages[0], plan_lists(plan, program)[0])
    assert chain == (0, len(program.segments))
    runs = divided(chain, kinds, ops, 2 * ops[stretch[0]])
    alike = [(a, b) for a, b in runs if set(range(a, b)) <= set(stretch)]
    assert {b - a for a, b in alike} == {2}
    from meshwright.generate.program import generate

    made = {run.first: run for run in generate(program, plan, joined=alike).runs}
    assert len({run.pair.graph for run in made.values()}) == 1


def test_what_moves_parameters_breaks_a_run() -> None:
    """Data parallel: gradients of a segment are reduced while the one before it runs backward."""
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=("dp=2", "mesh=2", "zero=0"))
    assert chains(plan, program, plan.stages[0], plan_lists(plan, program)[0]) == []
    assert units(plan, program, plan.stages[0], plan_lists(plan, program)[0], CPU, "auto") == []


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2)) for _ in range(5)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()
