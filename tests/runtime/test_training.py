"""What a training loop is made of besides steps: reading data, evaluating, the right optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import small_model

from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError, RunError
from meshwright.models.gpt import GPT
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


def a_plan(name: str, size: int, *pins: str, **changes: Any) -> Plan:
    return replace(make_plan(capture(*small_model(name)), load_cluster(f"local:{size}"), pins=pins), **changes)


class Rows:
    """Sample i is made of i: one sees who read what."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((12,), index), torch.full((12,), index + 1)


def read(rank: int, plan_json: bytes) -> list[Any]:
    import meshwright as mw

    plan = Plan.from_json(plan_json)
    found = mw.loader(Rows(), plan, shuffle=False)
    first = [(batch["tokens"][:, 0].tolist(), batch["targets"][0, 0].item()) for batch in found]
    second = [batch["tokens"][:, 0].tolist() for batch in mw.loader(Rows(), plan, seed=1)]
    again = mw.loader(Rows(), plan, seed=1)
    batch = next(iter(again))
    assert set(batch["tokens"][:, 0].tolist()) <= set(again.numbers), "the batch that a message names"
    assert len(again.numbers) == plan.batch
    resumed = mw.loader(Rows(), plan, seed=8)
    resumed.load_state_dict(again.state_dict())
    rest = [batch["tokens"][:, 0].tolist() for batch in resumed]
    return [first, second, rest]


def test_each_rank_reads_its_rows(ranks: Callable[[int], GlooPool]) -> None:
    zero, one = ranks(2).run(read, a_plan("gpt", 2, "dp=2").to_json())
    assert zero[0] == [([0, 1, 2], 1), ([6, 7, 8], 7), ([12, 13, 14], 13)]
    assert one[0] == [([3, 4, 5], 4), ([9, 10, 11], 10), ([15, 16, 17], 16)]
    shuffled = [sorted(a + b) for a, b in zip(zero[1], one[1], strict=True)]
    assert len({row for batch in shuffled for row in batch}) == 18
    assert zero[2] == zero[1][1:], "a loader goes on from a saved position"


def test_with_micro_batches_a_rank_reads_rows_of_each(ranks: Callable[[int], GlooPool]) -> None:
    zero, one = ranks(2).run(read, a_plan("gpt", 2, "dp=2", microbatches=3).to_json())
    assert [batch[0] for batch in zero[0]] == [[0, 2, 4], [6, 8, 10], [12, 14, 16]]
    assert [batch[0] for batch in one[0]] == [[1, 3, 5], [7, 9, 11], [13, 15, 17]]


def disagree(rank: int, plan_json: bytes, differing: bool) -> str:
    import meshwright as mw

    model, batch = small_model("gpt")
    trainer = mw.parallelize(model, Plan.from_json(plan_json), debug=True)
    if differing and rank == 1:
        batch["tokens"][0, 0] += 1
    try:
        trainer.step(batch, global_batch=True)
    except MeshwrightError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("pin", "differing", "found"), [("tp=2", True, True), ("tp=2", False, False)])
def test_peers_with_other_data_are_named(
    pin: str, differing: bool, found: bool, ranks: Callable[[int], GlooPool]
) -> None:
    for message in ranks(2).run(disagree, a_plan("gpt", 2, pin).to_json(), differing):
        assert ("ranks 0 and 1 hold different 'tokens'" in message) == found


def evaluated(rank: int, name: str, plan_json: bytes) -> dict[str, Any]:
    import meshwright as mw

    model, batch = small_model(name)
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    for _ in range(2):
        trainer.step(batch, global_batch=True)
    before = {key: value.clone() for key, value in trainer.state_dict().items()}
    loss = trainer.evaluate(batch, global_batch=True)
    same = all(torch.equal(value, before[key]) for key, value in trainer.state_dict().items())
    return {"loss": loss.item(), "same": same}


@pytest.mark.parametrize(
    ("name", "pins"), [("resnet", ("dp=2",)), pytest.param("gpt", ("dp=2", "zero=3"), marks=pytest.mark.full)]
)
def test_evaluation_is_the_model_in_eval_mode(
    name: str, pins: tuple[str, ...], ranks: Callable[[int], GlooPool]
) -> None:
    model, batch = small_model(name)
    for _ in range(2):  # the running statistics move
        model(**batch)
    loss = model.eval()(**batch).item()
    for found in ranks(2).run(evaluated, name, a_plan(name, 2, *pins).to_json()):
        assert found["loss"] == pytest.approx(loss, rel=1e-4)
        assert found["same"], "evaluation changes nothing"


def dropping() -> tuple[GPT, dict[str, torch.Tensor]]:
    model = GPT(layers=2, hidden=48, heads=6, ffn=96, vocab=96, seq=12, tied=True, dropout=0.3)
    return model, small_model("gpt")[1]


def drop(rank: int, plan_json: bytes) -> dict[str, Any]:
    import meshwright as mw

    torch.manual_seed(0)
    model, batch = dropping()
    trainer = mw.parallelize(model, Plan.from_json(plan_json), seed=7)
    losses = [trainer.step(batch, global_batch=True).item() for _ in range(2)]
    gradients = {key: value.grad.full_tensor() for key, value in trainer.named_parameters()}
    return {"losses": losses, "gradients": gradients, "still": trainer.evaluate(batch, global_batch=True).item()}


@pytest.mark.parametrize(("pins", "microbatches"), [(("dp=2",), 3), (("tp=2",), 1)])
def test_dropout_is_that_of_one_process(
    pins: tuple[str, ...], microbatches: int, ranks: Callable[[int], GlooPool]
) -> None:
    program = capture(*dropping())
    one = make_plan(program, load_cluster("local:1")).to_json()
    many = replace(make_plan(program, load_cluster("local:2"), pins=pins), microbatches=microbatches)
    true = ranks(1).run(drop, one)[0]
    assert len({*true["losses"], true["still"]}) == 3, "each step drops others, evaluation none"
    for found in ranks(2).run(drop, many.to_json()):
        assert found["losses"] == pytest.approx(true["losses"], rel=1e-5)
        assert found["still"] == pytest.approx(true["still"], rel=1e-5)
        for key, gradient in true["gradients"].items():
            assert (found["gradients"][key] - gradient).abs().max() <= max(1e-4 * gradient.abs().max(), 1e-7), key


def test_an_optimizer_that_keeps_more_than_was_planned_is_refused() -> None:
    from meshwright.runtime.weights.optimizers import expect_optimizer, make_optimizer, watch

    parameters = [torch.nn.Parameter(torch.ones(4))]
    parameters[0].grad = torch.ones(4)
    expect_optimizer({"ones": parameters[0]}, "momentum", {})
    planned = make_optimizer("momentum", parameters, 0.1)
    watch(planned)
    planned.step()
    for wrong, kept in (
        (torch.optim.AdamW(parameters, amsgrad=True), 3),
        (torch.optim.RAdam(parameters), 2),
    ):
        watch(wrong)
        with pytest.raises(RunError, match=rf"keeps {kept} tensors of state"):
            wrong.step()
    sparse = torch.optim.SparseAdam(parameters)
    with pytest.raises(RunError, match="whose gradients are dense"):
        watch(sparse)
    for smaller in (torch.optim.SGD(parameters), torch.optim.Adagrad(parameters)):
        watch(smaller)
        smaller.step()
