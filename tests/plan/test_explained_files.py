"""`meshwright explain` of an edited file: refused with the field, against the model where that is here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.capture import capture
from meshwright.cli import main
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

MODEL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"
UP = "layers.0.up.weight"


@pytest.fixture(scope="module")
def plan() -> Plan:
    program = capture(*parse_reference(MODEL).meta(4))
    return make_plan(program, load_cluster("local:2"), model=MODEL, pins=("tp=2",))


def _stages(count: int) -> list[dict[str, Any]]:
    """Predictions of so many stages."""
    times: dict[str, Any] = {name: [0.0] for name in ("forward_s", "backward_input_s", "backward_weight_s", "send_s")}
    held = ("in_flight", "static_bytes", "resident_bytes", "transient_bytes", "peak_bytes")
    times |= dict.fromkeys(("busy_s", "exposed_s", "bubble_s"), 0.0)
    return [times | dict.fromkeys(held, 1) for _ in range(count)]


def _hop(plain: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = plain["stages"][0]["mesh"]["axes"][0]["hops"][0]
    return found


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda p: None, 0, ""),
        (lambda p: p.update(cluster="nope:8"), 0, "is of the cluster 'nope:8', which is no preset"),
        (lambda p: p.update(fingerprint="0" * 16), 2, "its fingerprint is 0000000000000000"),
        (lambda p: p.update(model=MODEL.replace("layers=1", "layers=2")), 2, "another model (gpt?layers=2"),
        (lambda p: p.update(model="gpx"), 2, "model is 'gpx': unknown model"),
        (lambda p: p["parameters"][UP].update(storage="[S(9)]"), 2, f"{UP}.storage"),
        (lambda p: p["parameters"].pop(UP), 2, f"parameters differ in {UP}"),
        (lambda p: p["choices"][1].update(recompute=["nonsense"]), 2, "names nonsense"),
        (lambda p: p.update(batch=7), 2, "inputs.tokens"),
        (lambda p: p.update(pins=["nothing.*=S(0)"]), 2, "nothing.*=S(0) matches no parameter"),
        (lambda p: p.update(model=""), 0, ""),
        (lambda p: p.update(model="gone.py:make"), 0, "not held against its model gone.py:make: it is code"),
        (lambda p: p.update(model="gone.py:make", memory_bytes=5), 2, "memory_bytes is 5"),
        (lambda p: p["predicted"].update(peak_bytes=10**400), 2, "predicted.peak_bytes has 401 digits"),
        (lambda p: p["predicted"]["collectives"][0].update(bytes=10**400), 2, "collectives[0].bytes has 401 digits"),
        (lambda p: p["predicted"].update(stages=_stages(1)), 0, ""),
        (lambda p: p["predicted"].update(stages=_stages(2)), 2, "predicted.stages has 2 stages"),
        (lambda p: _hop(p).update(efficiency=[["all_reduce", 0.0]]), 2, "the efficiency of all_reduce by host is 0.0"),
    ],
)
def test_explain_refuses_an_edit_to_nonsense(
    plan: Plan, change: Any, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, path = json.loads(plan.to_json()), tmp_path / "plan.json"
    change(plain)
    path.write_text(json.dumps(plain))
    assert main(["explain", str(path)]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert ("predicted step" in told.out) == (code == 0)


def test_an_axis_of_a_name_of_its_own_is_described(plan: Plan) -> None:
    plain = json.loads(plan.to_json())
    text = json.dumps(plain).replace('"tp"', '"wide"').replace('"tp=2"', '"mesh=2"')
    assert "axis wide of 2: a name that says nothing" in str(Plan.from_json(text.encode()))


EVIL = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
"""


@pytest.mark.parametrize("command", ["explain", "simulate", "code"])
def test_a_plan_does_not_say_what_code_runs(
    plan: Plan, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    replace(plan, model=f"{tmp_path / 'evil.py'}:make").save(path := tmp_path / "plan.json")
    code = main([command, str(path)])
    assert code == (0 if command == "explain" else 2)
    assert f"add --model '{tmp_path / 'evil.py'}:make' if you trust it" in capsys.readouterr().err
    assert not (tmp_path / "evil.ran").exists()
    main([command, str(path), "--model", f"{tmp_path / 'evil.py'}:make"])
    assert (tmp_path / "evil.ran").exists(), "what is named on the command line does"


def test_names_may_stand_after_options(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.save(path := tmp_path / "plan.json")
    assert main(["explain", str(path), "--limit", "1", UP]) == 0
    assert f"{UP}: " in capsys.readouterr().out
    assert main(["explain", str(path), "--limits", "1", UP]) == 2
    assert "unknown: --limits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--limit", "0", UP], "--limit 0"),
        (["--limit", "-1", UP], "--limit -1"),
        (["nosuch"], "or head:OP, where OP is one of "),
        (["tokens:nosuch"], "layer tokens has no op 'nosuch'\n  expected: one of its ops: "),
        (["token:liner_1"], "or tokens:OP, where OP is one of linear_1, "),
        (["--what-if", "dp="], "pin 'dp=' drops a pin that there is not\n  expected: one of the plan's own: tp=2"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    plan: Plan, given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.save(path := tmp_path / "plan.json")
    assert main(["explain", str(path), *given]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out


def test_a_pin_that_changes_nothing_leaves_the_plan(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.save(path := tmp_path / "plan.json")
    assert main(["explain", str(path), "--what-if", f"microbatch={plan.microbatches}"]) == 0
    assert capsys.readouterr().out == "the plan stays as it is\n"
    changed = replace(plan, pins=(*plan.pins, f"microbatch={plan.microbatches}"))
    changed.save(other := tmp_path / "other.json")
    assert main(["explain", str(path), "--against", str(other)]) == 0
    assert capsys.readouterr().out.startswith("constraints: tp=2 -> tp=2, microbatch=")


@pytest.mark.parametrize("batch", [0, -8, 2.5])
def test_a_batch_of_nothing_is_refused_by_itself(batch: Any) -> None:
    model, samples, loss = parse_reference(MODEL).meta(4)
    with pytest.raises(PlanError, match=f"global_batch {batch}") as caught:
        mw.plan(model, samples, "local:1", global_batch=batch, loss=loss)
    assert "pin" not in str(caught.value)
