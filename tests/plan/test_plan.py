"""A plan is text one can read, edit and compare; what is not a plan is refused with the field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_models import small_model

import meshwright as mw
from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.units import parse_bytes, show_bytes, show_seconds, show_spans
from meshwright.planner.plan import make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(capture(*small_model("llama")), load_cluster("local:2"), pins=("tp=2",))


def test_a_plan_survives_its_file(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def edited(plan: Plan, change: Any) -> bytes:
    plain = json.loads(plan.to_json())
    change(plain)
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda p: p.update(schema=99), "schema 99"),
        (lambda p: p.update(schema="3"), "schema the text '3'\n  expected: the number 3"),
        (lambda p: p.update(schema=2), "(?s)has schema 2.*meshwright plan --upgrade"),
        (lambda p: p.update(tasks=["0F0"]), "tasks has 1 line with schedule 'one-stage'"),
        (lambda p: p.update(compile="yes"), "compile"),
        (lambda p: p.pop("schema"), "not a plan"),
        (lambda p: p.update(foo=1), "(?s)has the field foo, which plans have not.*fingerprint, model.*take it out"),
        (lambda p: p.update(microbatch=2), "(?s)has the field microbatch, .*did you mean microbatches"),
        (lambda p: p["choices"][1].update(recomputes=[]), r"(?s)choices\[1\].recomputes, .*choices\[1\].recompute\?"),
        (lambda p: p["stages"][0]["mesh"]["device"].update(peak=1), r"stages\[0\].mesh.device.peak, which"),
        (lambda p: p.update(rules={"foo": ["x"]}), "rules names foo"),
        (lambda p: p.update(order=["x"]), "order has the step 'x'"),
        (lambda p: p.update(order=["forward 0", "forward 0"]), "order has the step 'forward 0', out of turn"),
        (lambda p: p.update(order=["forward 0", "backward 0"]), "order lacks layer 1"),
        (lambda p: p.update(routed_via_stages=[1]), r"routed_via_stages is \[1\] with 1 stage"),
        (lambda p: p["stages"][0]["mesh"]["device"].update(kind="tpu"), r"stages\[0\].mesh: .* kind is 'tpu'"),
        (lambda p: p.update(batch="many"), r"batch"),
        (lambda p: p["segments"].__setitem__(0, 77), r"segments\[0\] is 77"),
        (lambda p: p.update(choices=[]), "choices is empty\n  expected: one for each way"),
        (lambda p: p["choices"][0].update(outputs=["[I, I]"]), r"choices\[0\].outputs"),
        (lambda p: p["choices"][1]["parameters"].update(x="[]"), r"choices\[1\].parameters.x is \[\]"),
        (lambda p: p["stages"][0].update(end=1), "(?s)segments has . entries\n  expected: 1, .*to do: undo the edit"),
        (lambda p: p["stages"][0].update(first=1), "(?s)stages cover.*to do: undo the edit"),
        (
            lambda p: p["segments"].pop(),
            "(?s)segments has . entries\n  expected: ., one for each.*to do: undo the edit",
        ),
        (lambda p: p["predicted"].update(gap=3), r"predicted.gap is 3.0\n  expected: a share, from 0 to 1"),
        (lambda p: p.update(microbatches=10**9), "(?s)microbatches is .*, one of 1, 2, 3, 6\n"),
        (lambda p: p["stages"][0]["mesh"].update(ranks=[0, 0]), r"stages\[0\].mesh: ranks are \[0, 0\] on axes of 2"),
        (lambda p: p["stages"][0]["mesh"]["axes"][0]["hops"][0].update(size=1), r"stages\[0\].mesh: .* has size 1"),
        (lambda p: p["stages"][0]["mesh"].update(ranks=[0, 1 << 40]), r"ranks leave out \[1, 2, "),
        (lambda p: p["stages"][0]["mesh"].update(ranks=[0, -1]), r"ranks have -1"),
        (lambda p: p["stages"][0]["mesh"]["axes"][0].update(backend="gloG"), r"stages\[0\].mesh: .* backend 'gloG'"),
        (lambda p: p.update(batch=10**400), "batch has 1329 bits"),
        (lambda p: p.update(batch=0), "batch is 0"),
        (lambda p: p["choices"][-1].update(chunks=-1), r"choices\[2\].chunks is -1"),
        (lambda p: p["choices"][-1].update(chunks=7), r"choices\[2\].chunks is 7"),
        (lambda p: p.update(memory_bytes=-5, headroom=0.0), "memory_bytes is -5"),
        (lambda p: p.update(memory_bytes=1000, headroom=0.0), "memory_bytes is 1000"),
        (lambda p: p["weight_bytes"].update({"layers.0.up.weight": -1}), "weight_bytes.layers.0.up.weight is -1"),
        (lambda p: p["predicted"].update(step_s=-1.0), r"predicted.step_s is -1.0"),
        (lambda p: p["predicted"].update(peak_bytes=-1), r"predicted.peak_bytes is -1"),
        (lambda p: p.update(cluster="dgx-h100:1"), r"cluster is 'dgx-h100:1', .* 2 x cpu"),
        (lambda p: p.update(cluster="local:3"), "cluster is 'local:3'"),
        (lambda p: p.update(pins=["tp=9"]), r"pins: pin tp=9\n  expected: pins that agree with stages\[0\].mesh"),
        (lambda p: p.update(pins=["tp=9", "dp=2"]), r"pins: pins tp=9 and dp=2\n  expected: .*, which is tp=2"),
        (lambda p: p.update(pins=["mesh=2x1"]), "pins: pin mesh=2x1"),
        (lambda p: p.update(pins=["pp=2"]), "pins: pin pp=2"),
        (lambda p: p.update(pins=["nonsense"]), "pins: pin 'nonsense'"),
        (lambda p: p.update(precision="fp8"), "precision is 'fp8'"),
        (lambda p: p.update(optimizer="lion"), "lion"),
        (lambda p: p.update(schedule="gpipe"), "schedule is 'gpipe'"),
        (lambda p: p["parameters"]["layers.0.up.weight"].update(storage="[P]"), r"layers.0.up.weight.storage is \[P\]"),
    ],
)
def test_an_edit_to_nonsense_is_refused_with_the_field(plan: Plan, change: Any, fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        Plan.from_json(edited(plan, change))


@pytest.mark.parametrize(
    ("cluster", "pins", "part"),
    [
        ("local:2", ("pp=2",), 1.0),
        ("local:4", ("pp=2", "dp=2", "microbatch=2"), 1.0),
        ("local:3", ("pp=2+1",), 1.0),
        ("local:4", ("mesh=2x2", "dp=2", "tp=2", "*.up.weight=S(0) on tp"), 1.0),
        ("local:2", ("zero=3:2",), 1.0),
        ("local:2", ("dp=2",), 0.95),
        ("local:1", ("recompute=rotor", "microbatch=1"), 0.9),
    ],
)
def test_what_the_planner_writes_is_read(cluster: str, pins: tuple[str, ...], part: float) -> None:
    """part: of the memory that it takes where there is enough."""
    program = capture(*small_model("gpt"))
    free = [text for text in pins if not text.startswith("recompute")]
    plan = make_plan(program, load_cluster(cluster), pins=free)
    if part < 1:
        limit = int(part * plan.predicted.peak_bytes)
        plan = make_plan(program, load_cluster(cluster), pins=pins, memory_bytes=limit)
        assert plan.recomputes or plan.order or plan.microbatches > 1
    found = plan.predicted
    assert Plan.from_json(plan.to_json()) == plan
    assert found.static_bytes + found.resident_bytes + found.transient_bytes == found.peak_bytes


def test_micro_batches_that_are_suggested_are_those_that_later_stages_share_too(plan: Plan) -> None:
    """Nothing of the batch is split here, but what the layers hand on."""
    split = [replace(choice, inputs=tuple("[S(0)]" for _ in choice.inputs)) for choice in plan.choices]
    text = replace(plan, choices=tuple(split)).to_json()
    for count in (0, 10**6):
        plain = json.loads(text) | {"microbatches": count}
        with pytest.raises(PlanError, match=r"(?s)as many for each of 2 ranks, one of 1, 3\n"):
            Plan.from_json(json.dumps(plain).encode())


def test_fields_that_have_a_default_may_be_left_out(plan: Plan) -> None:
    for name in ("links", "routed_via_stages", "order", "pins"):
        Plan.from_json(edited(plan, lambda p, name=name: p.pop(name)))
    Plan.from_json(edited(plan, lambda p: p["choices"][0].pop("recompute")))


def test_a_preset_with_other_devices_is_not_taken_for_it() -> None:
    changed = replace(load_cluster("local:2"), name="local:3")
    plan = make_plan(capture(*small_model("llama")), changed, pins=("dp=2",))
    assert plan.cluster == "local:3 (changed)"
    assert Plan.from_json(plan.to_json()) == plan


def test_a_layout_that_is_none_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"choices\[0\].outputs is '\[Q\]'"):
        Plan.from_json(edited(plan, lambda p: p["choices"][0].update(outputs=["[Q]"])))


def test_what_is_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(PlanError, match="not a plan"):
        Plan.load(tmp_path / "text")


def test_a_plan_for_another_model_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="another model"):
        plan.check_program(capture(*small_model("gpt")))
    plan.check_program(capture(*small_model("llama")))


def test_one_of_a_kind_is_singular() -> None:
    program = capture(*parse_reference("gpt?layers=2&hidden=32&heads=4&ffn=64&vocab=128&seq=16").meta(8))
    text = make_plan(program, load_cluster("local:4"), pins=("pp=4", "microbatch=1")).explain()
    assert ", 1 micro-batch of 8, " in text
    assert "stage 0: layer 0 on 1 x cpu" in text
    assert show_spans((0, 1), (4, 8)) == "layers 0, 4 to 7"


def test_units() -> None:
    assert parse_bytes("1.5GiB") == 3 << 29
    assert parse_bytes("20 MB") == 20_000_000
    assert parse_bytes("20gb") == 20 * 10**9
    assert parse_bytes("20GIB") == parse_bytes("20gib") == 20 << 30
    assert show_bytes(3 << 29) == "1.5 GiB"
    assert show_seconds(0.00123) == "1.23 ms"
    with pytest.raises(PlanError, match="memory 'lots'"):
        parse_bytes("lots")
    with pytest.raises(PlanError, match="without a unit"):
        parse_bytes("\x1d27")


def test_the_table_of_fields_has_every_field(plan: Plan) -> None:
    text = (Path(mw.__file__).parent.parent / "docs" / "plan.md").read_text(encoding="utf-8")
    table = text.partition("## The plan file")[2].partition("## The summary")[0]
    plain = json.loads(plan.to_json())
    fields = (*plain, *plain["choices"][0], *plain["stages"][0], *next(iter(plain["parameters"].values())))
    assert [name for name in fields if f"`{name}`" not in table and f"`{name}[]`" not in table] == []
