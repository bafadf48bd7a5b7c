"""Plans in the field's words: the recipe that a practitioner would name for what the layouts do."""

from __future__ import annotations

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.explain.describe import describe
from meshwright.explain.words import Recipe, Storage, headline, state_words
from meshwright.solve.plan import make_plan


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
