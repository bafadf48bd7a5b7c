"""Every family on a GPU: one rank equals eager there, and two ranks that share the card over gloo equal one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, SINGLE, family
from processes import GlooPool

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.runtime.trainer import parallelize
from meshwright.runtime.weights.regions import whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


@pytest.fixture(autouse=True)
def full_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def eager(name: str) -> tuple[float, dict[str, torch.Tensor]]:
    model, batch, _ = family(name)
    model.cuda()
    output = model(**{key: tensor.cuda() for key, tensor in batch.items()})
    loss = output if isinstance(output, torch.Tensor) else output.loss
    loss.backward()
    return loss.item(), {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


def assert_equal(name: str, found: tuple[float, dict[str, torch.Tensor]]) -> None:
    (loss, gradients), (true, expected) = found, eager(name)
    loose = 1e-6 if name in SINGLE else 1e-9
    assert loss == pytest.approx(true, rel=loose)
    assert gradients.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for key, gradient in expected.items():
        error = (gradients[key].to(gradient.device) - gradient).abs().max()
        assert error <= max(10 * loose * gradient.abs().max(), loose / 10 * largest), key


def planned(rank: int, name: str, plan_json: bytes, unit: str = "") -> tuple[float, dict[str, torch.Tensor]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, batch, reference = family(name)
    trainer = parallelize(model, Plan.from_json(plan_json), reference.family.loss, device="cuda", compile=unit or False)
    if unit:
        assert bool(trainer._interpreter.parts[0].generated.runs) == (unit == "run")
    loss = trainer.step(batch, global_batch=True)
    assert loss.is_cuda
    gradients: dict[str, Any] = {key: p.grad for key, p in trainer.named_parameters() if p.grad is not None}
    assert all(gradient.to_local().is_cuda for gradient in gradients.values())
    return loss.item(), {key: whole(gradient).cpu() for key, gradient in gradients.items()}


def plan_of(name: str, size: int, pins: tuple[str, ...]) -> Plan:
    model, batch, reference = family(name)
    return make_plan(capture(model, batch, reference.family.loss), load_cluster(f"local:{size}"), pins=pins)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_rank_equals_eager(name: str) -> None:
    assert_equal(name, planned(0, name, plan_of(name, 1, ("pp=1",)).to_json()))


@pytest.fixture(scope="module")
def pair() -> Any:
    pool = GlooPool(2)
    yield pool
    pool.close()


SHARED = {
    "gpt": ("mesh=2", "dp=2", "zero=0"),
    "resnet": ("mesh=2", "dp=2", "zero=0"),
    "hf llama": ("mesh=2", "dp=2", "zero=3"),
    "llama": ("mesh=2", "tp=2"),
    "moe": ("mesh=2", "dp=2", "zero=0"),
}


@pytest.mark.parametrize("name", SHARED)
def test_two_ranks_that_share_the_card_equal_one(name: str, pair: GlooPool) -> None:
    """Gathers, scatters and exchanges too: they go through the host's memory."""
    plan = plan_of(name, 2, SHARED[name])
    for found in pair.run(planned, name, plan.to_json()):
        assert_equal(name, found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("unit", ["segment", "run"])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_what_is_compiled_equals_eager(name: str, unit: str) -> None:
    """In double precision, so that only the order of sums differs."""
    found = planned(0, name, plan_of(name, 1, ("pp=1",)).to_json(), unit)
    assert_equal(name, found)
