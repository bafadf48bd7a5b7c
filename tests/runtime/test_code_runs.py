"""The printed file runs: its loss and gradients are those of the plain model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import chdir, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from families import family
from pipelines import inner_plan, piped, program_of
from processes import GlooPool

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.layout import Layout
from meshwright.layout.transport import ProcessTransport, use_transport
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.report.code import code
from meshwright.runtime.step.batches import Batches, own_coordinates
from meshwright.runtime.weights.regions import region

PLANS: dict[str, Callable[[], tuple[str, Plan]]] = {
    "gathered weights": lambda: ("gpt", inner_plan("gpt", 2, ("dp=2", "zero=3"), 1)),
    "tied weights of two stages": lambda: ("gpt", piped("gpt", (2, 1), pins=(("tp=2",), ()), microbatches=1)),
    "skips over stages": lambda: ("t5", piped("t5", (1, 1, 1), microbatches=1)),
    "running statistics": lambda: ("resnet", piped("resnet", (1, 2), pins=((), ("dp=2",)), microbatches=1)),
}


def plain(name: str) -> tuple[float, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    model, batch, _ = family(name)
    loss = model(**batch)
    loss.backward()
    gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients, dict(model.named_buffers())


def homes(name: str, plan: Plan) -> list[list[str]]:
    """The parameters that each stage is the first to read."""
    segments, found = program_of(name).segments, []
    for stage in plan.stages:
        before = {key for segment in segments[: stage.first] for key in segment.params}
        found.append(sorted({key for index in stage.segments for key in segments[index].params} - before))
    return found


def run_the_file(rank: int, name: str, text: str, plan_json: bytes, homes: list[list[str]]) -> dict[str, Any]:
    plan = Plan.from_json(plan_json)
    scope: dict[str, Any] = {}
    exec(compile(text, "generated", "exec"), scope)
    transports = [
        ProcessTransport.from_ranks(torch.tensor(stage.mesh.ranks).reshape(stage.mesh.sizes), stage.mesh.names)
        for stage in plan.stages
    ]
    model, batch, _ = family(name)
    weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    own, stored = nullcontext(), {}
    where: dict[str, tuple[slice, ...]] = {}
    for stage, transport, read in zip(plan.stages, transports, homes, strict=True):
        if rank not in stage.mesh.ranks:
            continue
        own = use_transport(transport)
        for key in read:
            place = own_coordinates(plan, stage, rank)
            layout = Layout.parse(plan.parameters[key].storage)
            where[key] = region(layout, tuple(weights[key].shape), stage.mesh.sizes, place)
            stored[key] = weights[key].detach()[where[key]].clone().requires_grad_()
    parts = Batches(plan, torch.device("cpu")).split(batch, whole=True)
    assert len(parts) == 1
    with own:
        loss = scope["loss"](parts[0], stored, buffers)
        loss.backward()
    dist.barrier()
    gradients = {key: leaf.grad for key, leaf in stored.items()}
    return {"loss": loss.item(), "gradients": gradients, "where": where, "buffers": buffers}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.full] * (number > 1)) for number, kind in enumerate(PLANS)]
)
def test_the_printed_file_trains(kind: str, ranks: Callable[[int], GlooPool]) -> None:
    name, plan = PLANS[kind]()
    loss, gradients, buffers = plain(name)
    text = code(program_of(name), plan)
    found = ranks(plan.world_size).run(run_the_file, name, text, plan.to_json(), homes(name, plan))
    for rank in plan.stages[-1].mesh.ranks:
        assert found[rank]["loss"] == pytest.approx(loss, rel=1e-9)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    assert {key for one in found for key in one["gradients"]} == gradients.keys()
    for one in found:
        for key, gradient in one["gradients"].items():
            assert (gradient - gradients[key][one["where"][key]]).abs().max() <= 1e-9 * largest, key
    for key, value in buffers.items():
        assert any(torch.allclose(one["buffers"][key].to(value.dtype), value, rtol=1e-9) for one in found), key


def run_the_page(rank: int, block: str, folder: str) -> tuple[float, float]:
    """How far its loss and its gradients are from the plain model's. The test's ranks have met already."""
    found: dict[str, Any] = {}
    path = mock.patch.object(sys, "path", [folder, *sys.path])
    with mock.patch.object(dist, "init_process_group"), chdir(folder), path:
        exec(compile(block, "once.py", "exec"), found)
    del sys.modules["step"]
    model, plan = found["model"], found["plan"]
    loss = model(**found["batch"])
    loss.backward()
    far = []
    for name, weight in model.named_parameters():
        layout = Layout.parse(plan.parameters[name].storage)
        own = region(layout, weight.shape, plan.mesh.sizes, plan.mesh.coordinates(rank))
        far.append((found["stored"][name].grad - weight.grad[own]).abs().max().item())
    return abs(loss.item() - found["loss"].item()), max(far)


def test_the_page_runs_the_printed_file(ranks: Callable[[int], GlooPool], tmp_path: Path) -> None:
    """What docs/running.md shows, on its two ranks."""
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    block = next(text for text in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M) if "import step" in text)
    name = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"
    program = capture(*parse_reference(name).meta(4))
    plan = make_plan(program, load_cluster("local:2"), pins=("dp=2", "zero=3", "microbatch=1"))
    replace(plan, model=name).save(tmp_path / "plan.json")
    (tmp_path / "step.py").write_text(code(program, plan))
    assert all(max(far) < 1e-5 for far in ranks(2).run(run_the_page, block, str(tmp_path)))
