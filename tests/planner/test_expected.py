"""Plans a practitioner would expect."""

from __future__ import annotations

import re
from math import prod

import pytest

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.layout import Layout
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan

pytestmark = pytest.mark.full


def test_gpt2_on_one_host_is_data_parallel() -> None:
    program = capture(*parse_reference("gpt2", ["seq=1024"]).meta(64))
    plan = make_plan(program, load_cluster("dgx-h100:1"))
    assert len(plan.stages) == 1
    assert {name.rstrip("0123456789") for name in plan.mesh.names} == {"dp"}
    used = {name: Layout.parse(entry.compute) for name, entry in plan.parameters.items()}
    others = {name for name, layout in used.items() if any(state.kind != "R" for state in layout)}
    assert others <= {"tokens.weight", "positions.weight"}, "tables may be cut, which takes 0.2 % off the step"


@pytest.fixture(scope="module")
def llama_70b() -> Program:
    return capture(*parse_reference("llama3-70b", ["seq=4096"]).meta(128), precision="mixed")


def test_llama_70b_is_refused_on_eight_with_the_bytes_and_the_cluster_that_works(llama_70b: Program) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(llama_70b, load_cluster("dgx-h100:1"), precision="mixed")
    text = str(caught.value)
    assert re.search(r"no plan fits in [\d,]+ bytes on each of 8 devices", text)
    assert re.search(r"[\d,]+ bytes .* are enough, [\d,]+ more", text)
    larger = re.search(r"use dgx-h100:(\d+) \((\d+) devices do\)", text)
    assert larger is not None
    assert 2 <= int(larger[1]) <= 4, "16 bytes a parameter are 1.1 TiB: 16 devices' memory at least"


def test_llama_70b_on_64_shards_its_states_and_keeps_tensor_parallelism_inside_hosts(llama_70b: Program) -> None:
    plan = make_plan(llama_70b, load_cluster("dgx-h100:8"), precision="mixed")
    whole = sum(prod(parameter.type.sizes) for parameter in llama_70b.parameters) * 16
    assert plan.predicted.static_bytes < whole / 16, "states are sharded, over stages or devices"
    for stage in plan.stages:
        for axis in stage.mesh.axes:
            if axis.name.startswith("tp"):
                assert {hop.level for hop in axis.hops} == {"host"}
