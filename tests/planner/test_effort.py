"""How much is searched, and constraints as an object: each says what it was given where that is none."""

from __future__ import annotations

import copy
import pickle

import pytest
from small_models import small_model

import meshwright as mw
from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.pins.constraints import pin_texts
from meshwright.pins.spelling import WORDS
from meshwright.planner.plan import make_plan

PINS = ("pp=1", "dp=2", "zero=3", "microbatch=1")


def test_more_effort_is_no_slower_and_every_plan_fits() -> None:
    program, cluster, pins = capture(*small_model("gpt")).at_batch(64), load_cluster("local:2"), PINS
    free = make_plan(program, cluster, pins=pins)
    budget = int(0.7 * free.predicted.peak_bytes)
    given = {"memory_bytes": budget, "pins": pins, "simpler_within": 0.0}
    fast, default, proof = (
        make_plan(program, cluster, effort=effort, **given) for effort in ("fast", "default", "proof")
    )
    assert proof.predicted.step_s <= default.predicted.step_s <= fast.predicted.step_s
    assert max(one.predicted.peak_bytes for one in (fast, default, proof)) <= budget
    assert all(one.predicted.gap >= 0 for one in (fast, default, proof))


def test_an_effort_that_there_is_not_is_refused() -> None:
    with pytest.raises(PlanError, match="effort 'most'"):
        make_plan(capture(*small_model("gpt")), load_cluster("local:2"), effort="most")


def test_constraints_say_what_pins_say() -> None:
    every = mw.Constraints(
        pp=(2, 2), layers=(3, 1), schedule="1f1b", mesh=(1, 2), dp=2, tp=1, cp=1, ep=1, vpp=2, sp=False, zero="3:8",
        microbatch=4, recompute="full", offload="optimizer", split="matmul", storage={"a.*": "S(0)"},
    )  # fmt: skip
    assert every.pins() == (
        "pp=2+2", "layers=3+1", "schedule=1f1b",
        "mesh=1x2", "dp=2", "tp=1", "cp=1", "ep=1", "vpp=2", "sp=off", "zero=3:8",
        "microbatch=4", "recompute=full", "split=matmul", "offload=optimizer", "a.*=S(0)",
    )  # fmt: skip
    assert {text.partition("=")[0] for text in every.pins()[:-1]} == set(WORDS) - {"microbatches"}
    assert mw.Constraints().pins() == ()
    model, batch, *_ = small_model("gpt")
    with pytest.raises(PlanError, match="tp=3"):
        mw.plan(model, batch, "local:2", pins=mw.Constraints(tp=3))
    with pytest.raises(PlanError, match="True or False"):
        mw.Constraints(sp="on").pins()  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"(?s)pin 'zerro=3'.*did you mean zero=3"):
        mw.plan(model, batch, "local:2", pins={"zerro": 3})


def test_a_dict_of_pins_is_the_same_as_a_list() -> None:
    assert pin_texts({"tp": 2, "sp": True}) == mw.Constraints(tp=2, sp=True).pins()
    given: dict[str, object] = {"tp": 2, "pp": (2, 2), "sp": "on", "a.weight": "S(1)", "cp": None}
    assert pin_texts(given) == ("pp=2+2", "tp=2", "sp=on", "a.weight=S(1)")
    model, batch, *_ = small_model("gpt")
    pins = {"tp": 2, "tokens.weight": "S(1)"}
    by_name = mw.plan(model, batch, "local:2", pins=pins)
    assert by_name == mw.plan(model, batch, "local:2", pins=["tp=2", "tokens.weight=S(1)"])
    assert by_name.pins == ("tp=2", "tokens.weight=S(1)")
    with pytest.raises(PlanError, match=r"(?s)tokens.weight=S\(5\)"):
        mw.plan(model, batch, "local:2", pins=pins | {"tokens.weight": "S(5)"})


def test_misspelt_constraints_are_refused_with_what_was_probably_meant() -> None:
    for given, meant in ({"zerro": 3}, "zero"), ({"microbatches": 4}, "microbatch"), ({"tpp": 2}, "tp or pp"):
        with pytest.raises(PlanError, match=rf"{next(iter(given))}=\d(.|\n)*did you mean {meant}\?"):
            mw.Constraints(**given)
    with pytest.raises(PlanError, match=r"one of pp, layers, schedule, mesh"):
        mw.Constraints(budget=3)  # type: ignore[call-arg]
    with pytest.raises(PlanError, match=r"Constraints\('tp=2'\)(.|\n)*by name"):
        mw.Constraints("tp=2")  # type: ignore[misc]
    kept = mw.Constraints(tp=2, storage={"a": "S(0)"})
    assert copy.copy(kept) == pickle.loads(pickle.dumps(kept)) == kept
