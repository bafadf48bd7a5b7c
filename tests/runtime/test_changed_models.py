"""A model that is changed after mw.parallelize: followed as plain PyTorch does, or refused before the next step."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import meshwright as mw
from meshwright.errors import ModelError, RunError
from meshwright.plan import Plan

LOSS = nn.CrossEntropyLoss()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.0)
        self.last, self.scale, self.longest = nn.Linear(16, 3), 1.0, 0
        self.act = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.drop(self.act(self.norm(self.first(x))))) * self.scale
        if not self.training:
            self.longest = max(self.longest, x.shape[0])
        return found


def model() -> Net:
    torch.manual_seed(0)
    return Net()


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]


@cache
def planned() -> Plan:
    return mw.plan(model(), batches()[0], loss=LOSS, cluster="local:1")


def adopted() -> tuple[Net, mw.Trainer]:
    own = model()
    return own, mw.parallelize(own, planned(), LOSS)


def freeze(own: Net) -> None:
    own.first.requires_grad_(False)


def losses(
    own: Net, step: Callable[[tuple[Tensor, Tensor]], Tensor], after: Callable[[Net], Any], to_none: bool = True
) -> list[float]:
    """One step, a change, and two more. after: what is changed."""
    optimizer, found = torch.optim.AdamW(own.parameters(), lr=1e-2), []
    for number, batch in enumerate(batches()):
        optimizer.zero_grad(set_to_none=to_none)
        found.append(step(batch).item())
        optimizer.step()
        if number == 0:
            after(own)
    return found


@pytest.mark.parametrize("to_none", [True, False])
def test_parameters_that_are_frozen_later_are_not_trained(to_none: bool) -> None:
    plain = model()

    def eager(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = LOSS(plain(batch[0]), batch[1])
        loss.backward()
        return loss

    own, trainer = adopted()
    true = losses(plain, eager, freeze, to_none)
    assert losses(own, trainer.step, freeze, to_none) == pytest.approx(true, rel=1e-5)


def test_gradients_that_frozen_parameters_have_stay_as_they_are() -> None:
    own, trainer = adopted()
    trainer.step(batches()[0])
    before = own.first.weight.grad.full_tensor().clone()
    freeze(own)
    trainer.step(batches()[1])
    assert torch.equal(own.first.weight.grad.full_tensor(), before)


def test_parameters_that_were_frozen_stay_so() -> None:
    own = model()
    freeze(own)
    trainer = mw.parallelize(own, mw.plan(own, batches()[0], loss=LOSS, cluster="local:1"), LOSS)
    trainer.step(batches()[0])
    own.first.requires_grad_(True)
    with pytest.raises(RunError, match=r"first\.weight requires a gradient, and did not"):
        trainer.step(batches()[0])


def replace_head(own: Net) -> None:
    own.last = nn.Linear(16, 3)


def set_dropout(own: Net) -> None:
    own.drop.p = 0.5


def set_scale(own: Net) -> None:
    own.scale = 2.0


def halve(own: Net) -> None:
    own.first.register_forward_hook(lambda module, given, found: found * 0.5)


def set_act(own: Net) -> None:
    own.act = torch.tanh


def set_method(own: Net) -> None:
    own.first.forward = lambda x: x.new_zeros(len(x), 16)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (halve, "hooks of module 'first' were registered or removed"),
        (set_act, "'act' of the model was changed since mw.parallelize"),
        (set_method, "'forward' of module 'first' was changed since mw.parallelize"),
        (nn.Module.eval, "the model is in eval mode, but was planned in train mode"),
        (lambda own: own.norm.eval(), "module 'norm' is in eval mode"),
        (replace_head, "the members of the model were replaced"),
        (set_dropout, "'p' of module 'drop' was 0.0 when it was planned and is 0.5"),
        (set_scale, "'scale' of the model was 1.0"),
    ],
)
def test_what_a_step_would_not_see_is_refused(change: Callable[[Net], Any], words: str) -> None:
    own, trainer = adopted()
    trainer.step(batches()[0])
    change(own)
    with torch.no_grad():
        own(batches()[0][0])  # whatever its forward changes, this is not among it
    with pytest.raises(RunError, match=words):
        trainer.step(batches()[0])


def test_validation_in_between_and_other_attributes_are_no_change() -> None:
    own, trainer = adopted()
    own.note = torch.zeros(3)  # type: ignore[assignment]
    trainer.step(batches()[0])
    own.eval()
    trainer(batches()[0])
    own.train()
    own.note = torch.ones(3)  # type: ignore[assignment]
    own.act = torch.nn.functional.relu
    seen: list[Any] = []
    handle = own.first.register_forward_hook(lambda module, given, found: seen.append(found.shape))
    trainer(batches()[0])
    handle.remove()
    trainer.step(batches()[0])
    assert own.longest == 8
    assert seen


def test_an_average_of_an_adopted_model_gives_outputs() -> None:
    found = []
    for planned in (False, True):
        own, trainer = adopted() if planned else (model(), None)
        average = AveragedModel(own, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
        for batch in batches():
            optimizer.zero_grad()
            if trainer is None:
                LOSS(own(batch[0]), batch[1]).backward()
            else:
                trainer.step(batch)
            optimizer.step()
            average.update_parameters(own)
        average.eval()
        with torch.no_grad():
            found.append(copy.deepcopy(average)(batches()[0][0]))
    torch.testing.assert_close(found[1], found[0])
    with pytest.raises(RunError, match="of a copy of a model"):
        average(batches()[0][0])


def test_an_adopted_model_is_not_pickled() -> None:
    own, trainer = adopted()
    with pytest.raises(RunError, match=r"torch\.save what trainer\.full_state_dict\(\) gives"):
        torch.save(own, io.BytesIO())
    assert trainer.step(batches()[0])


def saved_and_copied(rank: int, plan_json: bytes, folder: str) -> list[bool]:
    """What `torch.save` and `copy.deepcopy` make of pieces that are gathered together."""
    own = model()
    trainer = mw.parallelize(own, Plan.from_json(plan_json), LOSS)
    trainer.step(batches()[0], global_batch=True)
    with pytest.raises(RunError, match=r"torch\.save of the state_dict"):
        torch.save(own.state_dict(), f"{folder}/{rank}.pt")
    torch.save(dict(own.state_dict()), f"{folder}/{rank}.pt")
    again = torch.load(f"{folder}/{rank}.pt", weights_only=False)
    found = [torch.equal(again[key].to_local(), parameter.to_local()) for key, parameter in own.named_parameters()]  # type: ignore[operator]
    copied = copy.deepcopy(own).eval()
    with torch.no_grad():
        mine, theirs = copied(batches()[0][0]), trainer((batches()[0][0],))
    return [*found, bool(torch.allclose(mine, theirs))]


def test_pieces_are_saved_and_copied_one_by_one(ranks: Callable[[int], GlooPool], tmp_path: Path) -> None:
    plan = mw.plan(model(), batches()[0], loss=LOSS, cluster="local:2", pins=("dp=2", "zero=3"))
    for found in ranks(2).run(saved_and_copied, plan.to_json(), str(tmp_path)):
        assert len(found) == 7
        assert all(found)


def test_the_only_rank_saves_a_state_that_a_plain_model_loads() -> None:
    own, trainer = adopted()
    trainer.step(batches()[0])
    file = io.BytesIO()
    torch.save(own.state_dict(), file)
    file.seek(0)
    plain = model()
    plain.load_state_dict(torch.load(file))
    torch.testing.assert_close(plain.eval()(batches()[0][0]), trainer((batches()[0][0],)))
    doubled = {name: 2 * value for name, value in plain.state_dict().items()}
    own.load_state_dict(doubled)
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in doubled.items())


class Writes(Net):
    def save_pretrained(self, folder: str) -> str:
        return f"{folder} {self.first.weight.shape}"


def test_weights_are_written_whole() -> None:
    torch.manual_seed(0)
    own = Writes()
    trainer = mw.parallelize(own, mw.plan(own, batches()[0], loss=LOSS, cluster="local:1"), LOSS)
    with pytest.raises(RunError, match=r"trainer\.gathered\(\)"):
        own.save_pretrained("out")
    with trainer.gathered() as whole:
        assert whole.save_pretrained("out").startswith("out")  # type: ignore[operator]


def wrapped(kind: str) -> nn.Module:
    if kind == "compiled":
        return torch.compile(model(), backend="eager")  # type: ignore[return-value]
    if kind == "data parallel":
        return nn.DataParallel(model())
    own = model()
    if kind == "traced":
        return torch.jit.trace(own.first, batches()[0][0])  # type: ignore[no-any-return]
    if kind == "scripted":
        own.first = torch.jit.script(own.first)
        return own
    fully_shard(own.first)
    return own


@pytest.mark.filterwarnings("ignore:`?torch.jit")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("compiled", "OptimizedModule.*\n.*\n.*compile=True"),
        ("data parallel", "DataParallel.*\n.*\n.*`model.module`"),
        ("sharded", "'first' of the model is wrapped by torch's FSDPModule"),
        ("traced", "the model is wrapped by torch's ScriptModule(.|\n)*torch.jit.trace"),
        ("scripted", "'first' of the model is wrapped by torch's ScriptModule(.|\n)*torch.jit.script"),
    ],
)
def test_wrappers_of_torch_are_named(kind: str, words: str) -> None:
    adopted()  # there is a process group
    with pytest.raises(ModelError, match=words):
        mw.plan(wrapped(kind), batches()[0], loss=LOSS, cluster="local:1")
