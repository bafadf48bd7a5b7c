"""What a trainer refuses, and what it tells of the data it wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import small_model

from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError, RunError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.runtime.step.batches import Batches


def a_plan(size: int, *pins: str) -> bytes:
    return make_plan(capture(*small_model("gpt")), load_cluster(f"local:{size}"), pins=pins).to_json()


def attempt(rank: int, plan_json: bytes, name: str, rows: int, whole: bool) -> str:
    from meshwright.runtime.trainer import parallelize

    try:
        model, batch = small_model(name)
        trainer = parallelize(model, Plan.from_json(plan_json))
        trainer.step({key: tensor[:rows] for key, tensor in batch.items()}, global_batch=whole)
    except MeshwrightError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("planned", "name", "rows", "whole", "fault"),
    [
        (3, "gpt", 6, True, "2 processes are running"),
        (2, "llama", 6, True, "another model"),
        (2, "gpt", 5, True, "shape (5, 12)"),
        (2, "gpt", 6, False, "this rank's slice"),
        (2, "gpt", 3, False, ""),
        (2, "gpt", 6, True, ""),
    ],
)
def test_one_message_each(
    planned: int, name: str, rows: int, whole: bool, fault: str, ranks: Callable[[int], GlooPool]
) -> None:
    plan = a_plan(planned, f"dp={planned}")
    for message in ranks(2).run(attempt, plan, name, rows, whole):
        assert fault in message
        assert bool(fault) == bool(message)


@pytest.mark.parametrize(
    ("batch", "fault"),
    [((torch.zeros(6, 12),), "a batch that is a tuple of 1"), ({"words": torch.zeros(6, 12)}, "a batch of words")],
)
def test_a_batch_of_other_tensors(batch: object, fault: str) -> None:
    with pytest.raises(RunError, match=fault) as refused:
        Batches(Plan.from_json(a_plan(1)), torch.device("cpu"), 0).named(batch)
    assert refused.value.expected.endswith("tokens, targets")
    assert refused.value.todo


def slices(rank: int, plan_json: bytes) -> tuple[dict[str, tuple[slice, ...]], bool, bool]:
    from meshwright.runtime.trainer import parallelize

    model, batch = small_model("gpt")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = parallelize(model, Plan.from_json(plan_json), copy=True)
    where = trainer.data_slice()
    by_slice = trainer.step({key: batch[key][part] for key, part in where.items()})
    by_whole = trainer.step(batch, global_batch=True)
    torch.optim.AdamW(trainer.parameters()).step()
    untouched = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return where, torch.equal(by_slice, by_whole), untouched


def test_a_data_parallel_rank_reads_its_samples_only(ranks: Callable[[int], GlooPool]) -> None:
    found = ranks(2).run(slices, a_plan(2, "dp=2"))
    assert [where["tokens"] for where, _, _ in found] == [
        (slice(0, 3), slice(0, 12)),
        (slice(3, 6), slice(0, 12)),
    ]
    assert all(same for _, same, _ in found)
    assert all(untouched for _, _, untouched in found), "a model that is copied is not trained"
