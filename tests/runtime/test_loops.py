"""What users' loops do around `trainer.step`: as in plain PyTorch, or refused by name."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from torch import Tensor, nn

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError, RunError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.runtime.trainer import Trainer


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(seed: int = 1, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator), torch.randn(rows, 4, generator=generator)


def planned(*pins: str) -> bytes:
    return make_plan(capture(small(), batch(), nn.MSELoss()), load_cluster("local:2"), pins=pins).to_json()


def said(call: Callable[[], Any]) -> str:
    try:
        call()
    except MeshwrightError as error:
        return str(error)
    return ""


def made(plan: bytes, seed: int = 0) -> Trainer:
    return mw.parallelize(small(seed), Plan.from_json(plan), nn.MSELoss())


def loop_of_one_stage(rank: int, plan: bytes) -> dict[str, str]:
    found = {"seeds": said(lambda: made(plan, seed=rank))}
    own = batch(rank, 4)  # a rank's own half, though the plan has all samples on every rank
    found["halves"] = said(lambda: made(plan).step(own))
    trainer = made(plan)
    with torch.no_grad():
        found["no_grad"] = said(lambda: trainer.step(batch(), global_batch=True))
    handle = next(trainer.model.parameters()).register_hook(lambda gradient: 2 * gradient)
    found["hook"] = said(lambda: trainer.step(batch(), global_batch=True))
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    found["global hook"] = said(lambda: trainer.step(batch(), global_batch=True))
    handle.remove()
    other = made(plan)
    first = next(other.model.parameters())
    first.data = first.data * 0.9
    found["data"] = said(lambda: other.step(batch(), global_batch=True))
    wrong = (torch.randn(8, 7), torch.randn(8, 4))
    found["whole"] = said(lambda: trainer.step(wrong, global_batch=True))
    found["then"] = said(lambda: trainer.step(batch(), global_batch=True))
    found["part"] = said(lambda: trainer.step(wrong))
    found["after"] = said(lambda: trainer.step(batch(), global_batch=True))
    return found


def test_what_one_stage_refuses(ranks: Callable[[int], GlooPool]) -> None:
    for found in ranks(2).run(loop_of_one_stage, planned("tp=2")):
        assert "ranks 0 and 1 begin with different values of 0.weight" in found["seeds"]
        assert "ranks 0 and 1 hold different" in found["halves"]
        assert "trainer.evaluate" in found["no_grad"]
        assert "a hook on the gradient of 0.weight" in found["hook"]
        assert "hooks of all modules" in found["global hook"]
        assert "0.weight.data was set to another tensor" in found["data"]
        assert "(8, 7)" in found["whole"]
        assert not found["then"], "all ranks have refused the batch: they go on"
        assert "(8, 7)" in found["part"]
        assert "other ranks may wait in it" in found["after"]


class Centred(nn.Module):
    """A loss that trains, and keeps a running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        return (self.scale * (output - self.mean) - target).square().mean()


def plain_losses(model: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Of three more steps."""
    found = []
    for seed in (2, 3, 4):
        one = loss(model(batch(seed)[0]), batch(seed)[1])
        one.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(one.item())
    return found


def continued(rank: int, plan: bytes) -> tuple[list[float], list[str]]:
    """Three steps, of which a plain run has taken the first."""
    model, loss, state = first_step(Centred())
    trainer = mw.parallelize(model, Plan.from_json(plan), loss)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.1)
    optimizer.load_state_dict(state)
    found = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in (2, 3, 4):
            found.append(trainer.step(batch(seed), global_batch=True).item())
            optimizer.step()
            optimizer.zero_grad()
    return found, [str(one.message) for one in told if "between steps" in str(one.message)]


def first_step(loss: nn.Module) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    model = small()
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.1)
    loss(model(batch(1)[0]), batch(1)[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, loss, optimizer.state_dict()


@pytest.mark.parametrize("pin", ["tp=2", "zero=3"])
def test_a_plain_runs_optimizer_goes_on(pin: str, ranks: Callable[[int], GlooPool]) -> None:
    """Its state is cut; a loss module's buffer, which steps change, is not taken for a change by the user."""
    plan = mw.plan(small(), batch(), cluster="local:2", loss=Centred(), pins=[pin, "pp=1"])
    model, loss, state = first_step(Centred())
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.1)
    optimizer.load_state_dict(state)
    expected = plain_losses(model, loss, optimizer)
    for found, warned in ranks(2).run(continued, plan.to_json()):
        assert found == pytest.approx(expected, rel=1e-5)
        assert not warned


def loop_of_stages(rank: int, plan: bytes) -> dict[str, Any]:
    trainer = made(plan)
    part = said(lambda: trainer.model[0](batch()[0]))
    with trainer.gathered() as whole:
        assert whole[0](batch()[0]).shape == (8, 16)
    optimizer = torch.optim.SGD(
        [{"params": trainer.model[0].parameters()}, {"params": trainer.model[1:].parameters()}], lr=0.1
    )
    for scale in (0.5, 0.5):  # every stage alike
        trainer.step(batch(), global_batch=True)
        for parameter in trainer.model.parameters():
            parameter.grad *= scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    trainer.step(batch(), global_batch=True)
    trainer.clip_grad_norm_(1e-3)
    optimizer.step()
    optimizer.zero_grad()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    saved = said(lambda: torch.save({"optimizer": state}, io.BytesIO()))
    wrong = (torch.randn(8, 7), torch.randn(8, 4))
    both = said(lambda: trainer.step(wrong, global_batch=True))
    trainer.step(batch(), global_batch=True)
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return {
        "part": part,
        "wrong": both,
        "saved": saved,
        "norm": float(norm.full_tensor()),
        "clip": said(lambda: trainer.step(batch(), global_batch=True)),
    }


def test_a_norm_of_one_stage_is_noticed(ranks: Callable[[int], GlooPool]) -> None:
    """Of what all stages do alike nothing is said; a batch of which one stage reads the bad part is refused by all."""
    found = ranks(2).run(loop_of_stages, planned("pp=2"))
    assert found[0]["norm"] != found[1]["norm"]
    for one in found:
        assert "(8, 7)" in one["wrong"]
        assert "trainer.clip_grad_norm_" in one["clip"]
        assert "mw.save" in one["saved"]
        assert "the forward of '0' alone" in one["part"]


def test_a_step_that_was_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(capture(small(), batch(), nn.MSELoss()), load_cluster("local:1"))
    model = small()
    trainer = mw.parallelize(model, plan, nn.MSELoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    store = trainer._interpreter.parts[0].store
    for name in ("reduce", "_add_stored"):
        with monkeypatch.context() as patch:
            patch.setattr(store, name, _interrupting)
            with pytest.raises(KeyboardInterrupt):
                trainer.step(batch(5), global_batch=True)
        optimizer.zero_grad()
        trainer.step(batch(), global_batch=True)
        plain = small()
        nn.MSELoss()(plain(batch()[0]), batch()[1]).backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad.full_tensor(), other.grad)
        optimizer.zero_grad()


def _interrupting(*_: object) -> None:
    raise KeyboardInterrupt


def test_no_gradients_no_step() -> None:
    plan = make_plan(capture(small(), batch(), nn.MSELoss()), load_cluster("local:1"))
    trainer = mw.parallelize(small(), plan, nn.MSELoss())
    with torch.inference_mode(), pytest.raises(RunError, match=r"trainer\.evaluate"):
        trainer.step(batch(), global_batch=True)


def test_a_batch_that_gradients_would_go_back_to_is_refused() -> None:
    """As that of a discriminator's step on what a generator has made."""
    plan = make_plan(capture(small(), batch(), nn.MSELoss()), load_cluster("local:1"))
    trainer = mw.parallelize(small(), plan, nn.MSELoss())
    x, y = batch()
    with pytest.raises(RunError, match=r"requires a gradient(.|\n)*\.detach\(\)"):
        trainer.step((x.requires_grad_(), y), global_batch=True)
    trainer.step((x.detach(), y), global_batch=True)


class Parts(nn.Module):
    """An encoder and a head; the encoder's second layer is read by its parent."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleDict({"first": nn.Linear(8, 16), "second": nn.Linear(16, 16)})
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder["first"](x).relu()
        return self.head(nn.functional.linear(hidden, self.encoder["second"].weight))


def parts_alone(rank: int, plan: bytes) -> dict[str, Any]:
    model, hidden = Parts(), torch.ones(8, 16)
    trainer = mw.parallelize(model, Plan.from_json(plan), nn.MSELoss())
    ema = copy.deepcopy(model)
    found: dict[str, Any] = {"head": said(lambda: model.head(hidden)), "leaf": said(lambda: model.head[0](hidden))}
    with torch.no_grad():
        found["no_grad"] = said(lambda: model.head(hidden))
        found["copy"] = said(lambda: ema.head(hidden))
        found["plain"] = Parts().head(hidden)
        found["whole"] = model(batch()[0]).shape
        found["copy whole"] = ema(batch()[0]).shape
        model.head[1](hidden)  # has no weights
    with trainer.gathered() as whole:
        found["gathered"] = whole.head(hidden)
    found["step"] = trainer.step(batch(), global_batch=True).item()

    def backward() -> None:
        with trainer.gathered() as plain:
            plain(batch()[0]).sum().backward()

    found["backward"] = said(backward)
    model.zero_grad()
    again = mw.parallelize(model, Plan.from_json(plan), nn.MSELoss())
    with torch.no_grad():
        found["again"] = model(batch()[0]).shape
    assert max(len(module._forward_pre_hooks) for module in again.model.modules()) == 1
    return found


def test_a_part_of_an_adopted_model_is_not_run_alone(ranks: Callable[[int], GlooPool]) -> None:
    """But with whole weights it is; and a copy's parts are refused alike."""
    plan = make_plan(capture(Parts(), batch(), nn.MSELoss()), load_cluster("local:2"), pins=["zero=3"])
    plain = nn.MSELoss()(Parts()(batch()[0]), batch()[1]).item()
    for found in ranks(2).run(parts_alone, plan.to_json()):
        assert "the forward of 'head' alone" in found["head"]
        assert "the forward of 'head.0' alone" in found["leaf"]
        assert "trainer.gathered()" in found["no_grad"]
        assert "the forward of 'head' alone" in found["copy"]
        assert found["whole"] == found["again"] == found["copy whole"] == (8, 4)
        torch.testing.assert_close(found["gathered"], found["plain"].detach())
        assert found["step"] == pytest.approx(plain, rel=1e-5)
        assert "backward inside trainer.gathered()" in found["backward"]


def test_one_rank_refuses_parts_alike() -> None:
    model = Parts()
    plan = make_plan(capture(model, batch(), nn.MSELoss()), load_cluster("local:1"))
    trainer = mw.parallelize(model, plan, nn.MSELoss())
    assert "the forward of 'head' alone" in said(lambda: model.head(torch.ones(8, 16)))
    with trainer.gathered():
        assert model.head(torch.ones(8, 16)).shape == (8, 4)


def stages_continued(rank: int, plan: bytes) -> tuple[list[float], str]:
    """The optimizer is made before, and its state is loaded after; one that is made after refuses the state."""
    model, _, state = first_step(nn.MSELoss())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trainer = mw.parallelize(model, Plan.from_json(plan), nn.MSELoss())
    optimizer.load_state_dict(copy.deepcopy(state))
    found = []
    for seed in (2, 3):
        found.append(trainer.step(batch(seed), global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    del optimizer
    other = torch.optim.AdamW(model.parameters(), lr=0.1)
    found.append(trainer.step(batch(4), global_batch=True).item())
    return found, said(lambda: other.load_state_dict(state))


def test_stages_take_their_part_of_a_plain_runs_optimizer(ranks: Callable[[int], GlooPool]) -> None:
    model, loss, state = first_step(nn.MSELoss())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.load_state_dict(state)
    expected = plain_losses(model, loss, optimizer)
    for found, refused in ranks(2).run(stages_continued, planned("pp=2")):
        assert found == pytest.approx(expected, rel=1e-5)
        assert "before mw.parallelize" in refused


class Judged(nn.Module):
    """A discriminator, of what a generator makes where there is one."""

    def __init__(self, judge: nn.Module, maker: nn.Module | None = None) -> None:
        super().__init__()
        self.judge, self.maker = judge, maker

    def forward(self, x: Tensor) -> Tensor:
        return self.judge(x if self.maker is None else self.maker(x))


def judged() -> tuple[Judged, Judged]:
    judge = small()
    return Judged(judge), Judged(judge, nn.Linear(8, 8))


def two_trainers(rank: int, plans: list[bytes]) -> tuple[str, list[float]]:
    models = judged()
    both = [mw.parallelize(one, Plan.from_json(plan), nn.MSELoss()) for one, plan in zip(models, plans, strict=True)]
    refused = said(lambda: both[0].step(batch(), global_batch=True))
    torch.manual_seed(0)
    models = judged()
    first = mw.parallelize(models[0], Plan.from_json(plans[0]), nn.MSELoss())
    second = mw.parallelize(models[1], Plan.from_json(plans[1]), nn.MSELoss(), copy=True)
    maker = torch.optim.SGD([one for name, one in second.named_parameters() if name.startswith("maker.")], lr=0.1)
    judge, losses = torch.optim.SGD(first.parameters(), lr=0.1), []
    for seed in (1, 2):
        losses.append(first.step(batch(seed), global_batch=True).item())
        judge.step()
        judge.zero_grad()
        second.model.load_state_dict(first.full_state_dict(), strict=False)
        losses.append(second.step(batch(seed + 9), global_batch=True).item())
        maker.step()
        second.model.zero_grad()
    return refused, losses


def test_a_module_that_two_models_share(ranks: Callable[[int], GlooPool]) -> None:
    """The refusal says how, and that is what plain PyTorch computes."""
    programs = [capture(one, batch(), nn.MSELoss()) for one in judged()]
    plans = [make_plan(one, load_cluster("local:2"), pins=["zero=3", "pp=1"]).to_json() for one in programs]
    torch.manual_seed(0)
    first, second = judged()
    assert second.maker is not None
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second.maker)]
    expected = []
    for seed in (1, 2):
        for model, optimizer, own in ((first, optimizers[0], seed), (second, optimizers[1], seed + 9)):
            expected.append(nn.MSELoss()(model(batch(own)[0]), batch(own)[1]))
            expected[-1].backward()
            optimizer.step()
            second.zero_grad()
    for refused, losses in ranks(2).run(two_trainers, plans):
        assert "copy=True for the second" in refused
        assert losses == pytest.approx([one.item() for one in expected], rel=1e-5)


def test_an_optimizer_of_matrices_takes_no_closure() -> None:
    model = small()
    plan = make_plan(capture(model, batch(), nn.MSELoss()), load_cluster("local:1"))
    trainer = mw.parallelize(model, plan, nn.MSELoss())
    optimizer = torch.optim.Adafactor(model.parameters())
    trainer.step(batch(), global_batch=True)
    assert "Adafactor.step with a closure" in said(lambda: optimizer.step(lambda: torch.zeros(())))
    optimizer.step()
