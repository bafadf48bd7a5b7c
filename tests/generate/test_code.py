"""A printed segment gives what the sharded segment gives; whole files run in tests/runtime/test_code_runs.py."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from small_models import small_model
from torch import Tensor, nn

from meshwright.capture.execute import run_graph
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.generate.program import sharded_segments
from meshwright.layout.threads import simulate
from meshwright.models.gpt import GPT
from meshwright.models.moe import MoE
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.predict.traffic import collectives_of
from meshwright.price.buckets import parameter_collectives
from meshwright.price.weigh import count_collectives
from meshwright.report.code import code


def model_of(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The small models, one that drops, and one with experts."""
    tokens = small_model("gpt")[1]
    if name == "dropping":
        return GPT(2, 48, 6, 96, 96, 12, tied=True, dropout=0.2), tokens
    if name == "moe":
        return MoE(2, 48, 6, 6, 48, 96, 4, 2, True, False, 1e4), tokens
    return small_model(name)


@pytest.mark.parametrize(
    ("name", "pin"),
    [
        ("resnet", "tp=2"),
        ("dropping", "dp=2"),
        ("dropping", "tp=2"),
        ("moe", "dp=2"),
        pytest.param("resnet", "dp=2", marks=pytest.mark.full),
        pytest.param("moe", "tp=2", marks=pytest.mark.full),
    ],
)
def test_the_printed_code_computes_what_the_sharded_segment_does(name: str, pin: str) -> None:
    program = capture(*model_of(name))
    plan = make_plan(program, load_cluster("local:2"), pins=(pin,))
    _, text = assert_the_text_computes(program, plan)
    tied = {parameter.name for parameter in program.parameters if len(program.uses_of(parameter.name)) > 1}
    assert set(re.findall(r"^# +tied: (\S+) is also layer 0's", text, re.M)) == tied
    assert bool(tied) == (name == "dropping")


HSDP = ("mesh=2x2", "dp=4", "zero=3:2")


@pytest.mark.parametrize("pins", [("dp=2", "zero=3"), ("tp=2",), ("dp=2", "zero=0"), HSDP], ids=" ".join)
def test_every_collective_of_the_plan_is_named_with_its_axis(pins: tuple[str, ...]) -> None:
    """Those of weights and gradients as often as they run: `in N collectives` at the end of the text."""
    program = capture(*small_model("gpt")).at_batch(8)
    plan = make_plan(program, load_cluster("local:4" if pins is HSDP else "local:2"), pins=pins)
    text = code(program, plan)
    assert ("reduce, at the end of the step" in text) == (pins is HSDP)
    for one in plan.predicted.collectives:
        assert f"{one.kind} over {one.axis.replace('*', ', ')}" in text, one
    reduces = "\n".join(re.findall(r"^#\s+reduce, .*", text, re.M))
    listed = re.findall(r"(\w+) over \w+ of \d+ weights? in (\d+) collective", reduces)
    listed += re.findall(r"(\w+) over \w+(?: then take_slice over \w+)? of (\d+) weights?, one by one", reduces)
    counted = list(parameter_collectives(plan, program))
    for kind in ("reduce_scatter", "all_reduce"):
        assert sum(int(count) for name, count in listed if name == kind) == sum(one.kind == kind for one in counted)
    assert bool(listed) == ("tp=2" not in pins)


@pytest.mark.parametrize("pins", [("dp=2", "zero=3", "microbatch=2"), ("tp=2", "recompute=full")], ids=" ".join)
@pytest.mark.parametrize("chunks", [1, 2])
def test_docstrings_say_what_is_recomputed_and_count_the_collectives(pins: tuple[str, ...], chunks: int) -> None:
    """Those inside layers, as often as layers and micro-batches run, are the plan's less those of weights."""
    program = capture(*small_model("gpt")).at_batch(8)
    plan = make_plan(program, load_cluster("local:2"), pins=pins)
    last = replace(plan.choices[-1], chunks=chunks)
    plan = replace(plan, choices=(*plan.choices[:-1], last))
    plan = plan.with_prediction(collectives=collectives_of(plan, program))
    text = code(program, plan)
    assert ("recomputed in backward (activation checkpointing)" in text) == ("recompute=full" in pins)
    assert ("runs in 2 chunks of the samples" in text) == (chunks == 2)
    head = " ".join(text.partition("import torch")[0].split())
    assert ("The functions here compute plainly." in head) == plan.recomputes
    found = Counter[str]()
    for layers, told in re.findall(r'"""runs as (.*)\n((?:.*\n)*?)    """', text):
        several = re.search(r"(\d+) in all", layers)
        times = int(several[1]) if several else len(layers.split(", "))
        inside = " ".join(told.partition("collectives of a micro-batch: ")[2].split())
        for count, what in re.findall(r"(?:(\d+) x )?(\w+ over \w+)", inside):
            found[what] += times * plan.microbatches * int(count or 1)
    rest = [*parameter_collectives(plan, program), *count_collectives(plan, program)]
    wanted = Counter(f"{one.kind} over {one.axis}" for one in plan.predicted.collectives)
    assert found + Counter(f"{one.kind} over {one.axis}" for one in rest) == wanted
    assert all(f"{count} x {what}" in text.rpartition("collectives of one step")[2] for what, count in wanted.items())


OWN = """
name = "bench"
backend = "gloo"
[device.box]
kind = "cpu"
memory = "4GiB"
memory_bandwidth = "10GB/s"
peaks = { float32 = "100G" }
launch = "3us"
[level.desk]
bandwidth = "1GB/s"
latency = "50us"
shared = true
[level.room]
bandwidth = "0.1GB/s"
latency = "200us"
[[host]]
count = 2
device = "box"
devices = 1
"""


@pytest.mark.parametrize("name", ["bench", "local:2"])
def test_a_cluster_of_ones_own_is_printed_with_its_links(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN.replace("bench", name).replace("box", "cpu"))
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster(tmp_path / "own.toml"), pins=("tp=2",))
    scope, text = assert_the_text_computes(program, plan)
    assert scope["mesh"] == plan.mesh
    assert "load_cluster" not in text
    assert "bandwidth=100000000.0" in text


def assert_the_text_computes(program: Program, plan: Plan) -> tuple[dict[str, Any], str]:
    """A layer of the printed file, on two simulated ranks, against the sharded layer."""
    text = code(program, plan)
    scope: dict[str, Any] = {}
    exec(compile(text, "generated", "exec"), scope)
    graph = sharded_segments(program, plan)[1]
    function = scope[program.segments[1].name.replace(".", "_")]

    def rank(_: int) -> bool:
        torch.manual_seed(0)
        given = {v.name: torch.rand(v.type.sizes) for v in graph.arguments() if v.type.is_float}
        given |= {v.name: torch.randint(1, 9, v.type.sizes) for v in graph.arguments() if not v.type.is_float}
        values = run_graph(graph, given, torch.device("cpu"))
        names = [*graph.outputs, *(value for _, value in graph.updates)]
        found = function(*given_in_order(graph, given))
        found = found if isinstance(found, tuple) else (found,)
        return all(torch.equal(a, values[b]) for a, b in zip(found, names, strict=True))

    assert all(simulate({plan.mesh.names[0]: 2}, rank))
    assert "convert(" in text
    return scope, text


def given_in_order(graph: Any, given: dict[str, Any]) -> list[Any]:
    return [given[value.name] for value in graph.arguments()]
