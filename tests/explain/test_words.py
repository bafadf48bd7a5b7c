"""Plans in the field's words: the recipe that a practitioner would name for what the layouts do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.explain.describe import describe
from meshwright.explain.recommend import bound_words, emulated, recommendation
from meshwright.explain.words import Recipe, Storage, batch_parts, headline, state_words
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (("dp=2", "zero=0", "pp=1"), ("data parallel (DDP) over 2",)),
        (("dp=2", "zero=3", "pp=1"), ("FSDP (ZeRO-3) over 2",)),
        (
            ("dp=2", "zero=1", "microbatch=3", "pp=1"),
            ("ZeRO-1 (optimizer state sharded) over 2", "3 micro-batches"),
        ),
        (("dp=2", "zero=1", "pp=1", "microbatch=1"), ("ZeRO-1 (optimizer state sharded) over 2",)),
        (("tp=2", "zero=0", "pp=1"), ("tensor parallel over 2",)),
        (("pp=2", "schedule=1f1b", "microbatch=2"), ("pipeline parallel over 2 stages (1F1B)", "2 micro-batches of 3")),
    ],
)
def test_a_recipe_has_the_name_that_people_give_it(pins: tuple[str, ...], words: tuple[str, ...]) -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=pins)
    shown = headline(plan)
    for one in words:
        assert one in shown
    assert "zero=1" not in pins or "ZeRO-2" not in describe(plan)


def test_a_last_micro_batch_that_is_smaller_is_said() -> None:
    plan = make_plan(capture(*small_model("gpt")).at_batch(16), load_cluster("h100:1"), pins=("microbatch=3",))
    words = "3 micro-batches of 6, the last of 4"
    assert headline(plan).endswith(f" + {words}")
    assert f"{words}, gradients accumulated" in describe(plan)
    assert batch_parts(replace(plan, batch=18)) == "3 micro-batches of 6"


def test_statistics_of_norms_alone_are_no_checkpointing() -> None:
    """They take next to no time and save next to nothing."""
    plan = make_plan(capture(*small_model("gpt")), load_cluster("h100:1"), pins=("microbatch=1", "recompute=keep"))

    def recomputing(*names: str) -> Plan:
        return replace(plan, choices=tuple(replace(choice, recompute=names) for choice in plan.choices))

    assert "checkpointing" not in headline(recomputing("norm~1"))
    assert "statistics of norms recomputed in" in describe(recomputing("norm~1"))
    assert headline(recomputing("norm~1", "norm")).endswith(" + activation checkpointing in every layer")


def test_layers_that_run_more_than_once_are_said_in_words() -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("h100:1"), pins=("microbatch=1", "recompute=keep"))
    count = len(plan.segments)
    again = replace(plan, order=("pass 0", "pass 1", "pass 0", *plan.order))
    assert headline(again).endswith(f" + checkpoints within checkpoints in 2 of {count} layers")
    assert f"within checkpoints: 2 of {count} layers run forward more than once, up to 3 times" in describe(again)
    chunked = replace(again, choices=tuple(replace(choice, chunks=2) for choice in plan.choices))
    assert headline(chunked).endswith(f" + chunked loss + checkpoints within checkpoints in 2 of {count} layers")


def test_why_no_bound_of_a_compiled_plan_is_known() -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("h100:1"), pins=("microbatch=1",))
    unknown = plan.with_prediction(gap=1.0)
    assert bound_words(unknown) == "no bound known"
    compiled = replace(unknown, compile=True)
    assert bound_words(compiled) == "no bound known: what torch.compile fuses differs from plan to plan"


def test_products_in_bfloat16_are_said_to_be_slow_where_there_are_no_units_for_them() -> None:
    lacking = [*load_cluster("v100:1").devices, *load_cluster("h100:1").devices]
    note = emulated(lacking, "mixed")
    assert "no units of its own on V100-SXM2-16GB: " in note
    assert "--precision fp16" in note
    assert "--precision fp16" not in emulated(load_cluster("p100:1").devices, "bf16"), "no faster there"
    assert not emulated(lacking, "fp16") + emulated(load_cluster("h100:1").devices, "mixed")
    plan = make_plan(capture(*small_model("gpt")), load_cluster("v100:1"), pins=("microbatch=1",))
    assert " in fp32 (fp16: precision fp16) of " in recommendation(plan)[1]


def test_states_keep_their_letters_beside_plain_words() -> None:
    assert state_words("[S(1), R]", ("dp", "tp")) == "sharded on dim 1 over dp (S(1)), replicated over tp (R)"


def test_a_storage_of_next_to_nothing_is_not_in_the_headline() -> None:
    """Norms of a large model."""
    storages = (Storage(1, 4, False, 0.001), Storage(0, 1, False, 0.999))
    assert str(Recipe({"tp": 8}, storages, True, weighed=True)) == "tensor parallel over 8 with sequence parallel"


def test_weights_that_compute_splits_over_data_parallel_devices_have_no_replicas() -> None:
    degrees = {"dp": 2, "cp": 4}
    assert "replicas" not in str(Recipe(degrees, (Storage(3, 4, True, 1.0, 8),), False, weighed=True))
    assert "2 replicas (HSDP)" in str(Recipe(degrees, (Storage(3, 4, False, 1.0, 4),), False, weighed=True))


def test_shares_of_the_weights_are_of_each_level() -> None:
    storages = (Storage(2, 8, False, 0.7, 8), Storage(1, 8, False, 0.17, 8), Storage(0, 1, True, 0.13, 8))
    shown = str(Recipe({"dp": 8}, storages, False, weighed=True))
    assert shown.endswith("over 8 for 70% of the weights, ZeRO-1 for 17%")


def test_devices_that_store_and_split_are_said_to_be_the_same() -> None:
    def shown(degrees: dict[str, int], ways: int) -> str:
        return str(Recipe(degrees, (Storage(3, ways, False, 1.0, ways),), False, weighed=True))

    assert shown({"tp": 4}, 4) == "FSDP (ZeRO-3) over 4 + tensor parallel over the same 4"
    assert shown({"dp": 2, "cp": 2}, 4) == "FSDP (ZeRO-3) over 4 + context parallel over 2 of these"
    assert shown({"dp": 4, "tp": 2}, 4) == "FSDP (ZeRO-3) over 4 + tensor parallel over 2"
