"""bench/mist_plans.py reads plans of another planner, and says which it cannot express."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from mist_plans import as_row, compare, line, pins_of, reference
from published_rows import case_of
from row_tables import Refused

from meshwright.configuration.transformer import transformer_of

PLAN = {
    "plan_id": "0", "model": "tiny", "family": "gpt", "layers": "4", "hidden": "256", "heads": "4", "ffn": "1024",
    "vocab": "1024", "seq": "256", "gated_mlp": "false", "flash": "true", "gpu": "A100-SXM-40GB", "nodes": "1",
    "gpus_per_node": "2", "memory_GiB": "40", "global_batch": "8", "microbatches": "8", "micro_batch": "1",
    "pp": "2", "stage_layers": "3|1",
    "stage_gpus": "1|1", "stage_dp": "1|1", "stage_tp": "1|1", "stage_zero": "1|1", "stage_recompute_layers": "2|0",
    "stage_offload_weights": "0|0", "stage_offload_grads": "0|0", "stage_offload_optimizer": "0.5|0",
    "stage_offload_activations": "0|0", "source": "x plan.yaml",
}  # fmt: skip


def test_a_plan_becomes_the_configuration_that_it_says() -> None:
    given = case_of(as_row(PLAN)).given
    assert (given.dp, given.tp, given.pp, given.microbatches, given.zero) == (1, 1, 2, 8, 1)
    assert (given.stage_layers, given.recomputed, given.offload) == ((3, 1), (2, 0), (0.5, 0.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"stage_zero": "1|3"}, "zero differs by stage"), ({"stage_offload_activations": "0|0.5"}, "offload of activ")],
)
def test_what_cannot_be_expressed_is_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        as_row(PLAN | change)
    assert words in line(compare(PLAN | change, {}))


def test_prices_of_a_plan_and_the_measured_step_stand_in_one_line() -> None:
    steps = {"plan.yaml": as_row(PLAN) | {"step_time_s": "0.1", "status": "ok"}}
    found = compare(PLAN, steps, search=False)
    assert found["mist_s"] > 0
    assert found["mist_bytes"] > 0
    assert "measured" in line(found)


def test_both_planners_are_asked_for_one_model() -> None:
    """Untied weights and as many keys as queries: with our families' own, our planner had an easier llama."""
    for family in ("gpt", "llama"):
        row = as_row(PLAN | {"family": family, "gated_mlp": str(family == "llama").lower()})
        theirs, ours = case_of(row).model, transformer_of(reference(row))
        assert replace(ours, bias=False, expert_ffn=theirs.expert_ffn, kv_heads=theirs.kv_heads) == theirs
        assert ours.key_heads == theirs.key_heads


def test_a_plan_that_pins_can_say_is_priced_as_ours_is() -> None:
    """So that layers described by hand are not held against ops that were captured."""
    assert pins_of(PLAN) == []
    whole = PLAN | {"stage_recompute_layers": "0|0", "stage_offload_optimizer": "0|0"}
    assert pins_of(whole) == ["pp=2", "layers=4+2", "schedule=1f1b", "microbatch=8", "recompute=keep"]
    shared = whole | {"gpus_per_node": "4", "stage_dp": "2|2", "global_batch": "16"}
    assert {"dp=2", "tp=1", "zero=1"} < set(pins_of(shared))
    found = compare(whole, {})
    assert found["ours_s"] <= found["mist_s"]
    assert "by pins" in line(found)


def test_a_plan_that_does_not_fit_as_we_run_it_says_so() -> None:
    wide = PLAN | {"hidden": "8192", "heads": "64", "ffn": "32768", "layers": "40", "stage_layers": "30|10"}
    assert "GiB as we run it" in compare(wide, {}, search=False)["over"]
