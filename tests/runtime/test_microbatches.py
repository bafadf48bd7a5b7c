"""Micro-batches and precision: the loss and the gradients of the whole batch, in the dtypes that were planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import capture
from processes import GlooPool
from small_models import small_model
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.capture.averaging import averaging
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.layout import Collective
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.price.parameter import chain_uses, gathers
from meshwright.profile.lookup import lookup_segments

IGNORED = -100


def model_and_batch(name: str, dtype: str = "float32") -> tuple[nn.Module, dict[str, Tensor]]:
    """The first micro-batch of three has no target that counts, the second a few."""
    model, batch = small_model(name, dtype)
    if "targets" in batch:
        batch["targets"][:2] = IGNORED
        batch["targets"][2, 3:] = IGNORED
    return model, batch


def a_plan(name: str, pins: tuple[str, ...], size: int, microbatches: int, precision: str = "fp32") -> Plan:
    program = capture(*model_and_batch(name), precision=precision)
    plan = make_plan(program, load_cluster(f"local:{size}"), pins=pins)
    kept = "float32" if precision != "bf16" else "bfloat16"
    parameters = {key: replace(entry, dtype=kept) for key, entry in plan.parameters.items()}
    return replace(plan, microbatches=microbatches, precision=precision, parameters=parameters)


def run_planned(rank: int, name: str, plan_json: bytes, dtype: str = "float32") -> dict[str, Any]:
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch = model_and_batch(name, dtype)
    trainer = parallelize(model, Plan.from_json(plan_json))
    with record() as log:
        loss = trainer.step({key: batch[key][where] for key, where in trainer.data_slice().items()})
    gradients = {key: value.grad.full_tensor().clone() for key, value in trainer.named_parameters()}
    again = trainer.step(batch, global_batch=True)
    buffers = {key: value for key, value in trainer.state_dict().items() if key not in gradients}
    return {"loss": loss, "again": again, "gradients": gradients, "buffers": buffers, "log": log}


def run_plain(name: str, microbatches: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    """The plain model; over equal micro-batches, where that is what is asked for."""
    model, batch = model_and_batch(name)
    total = torch.zeros(())
    for k in range(microbatches):
        loss = model(**{key: tensor.chunk(microbatches)[k] for key, tensor in batch.items()}) / microbatches
        loss.backward()
        total += loss.detach()
    return total, {key: value.grad for key, value in model.named_parameters()}


def moved_bytes(log: list[Collective], kind: str) -> int:
    return sum(item.bytes for item in log if item.kind == kind)


PINS = {"data": ("dp=2", "zero=0"), "sharded": ("dp=2", "zero=3"), "tensor": ("tp=2",)}


@pytest.mark.parametrize("kind", ["data", "sharded", pytest.param("tensor", marks=pytest.mark.full)])
def test_micro_batches_weigh_as_many_targets_as_they_have(kind: str, ranks: Callable[[int], GlooPool]) -> None:
    loss, true = run_plain("gpt")
    for found in ranks(2).run(run_planned, "gpt", a_plan("gpt", PINS[kind], 2, 3).to_json()):
        torch.testing.assert_close(found["loss"], loss, rtol=1e-6, atol=0)
        torch.testing.assert_close(found["again"], found["loss"], rtol=0, atol=0)
        for key, gradient in true.items():
            error = (found["gradients"][key] - gradient).abs().max()
            assert error <= max(2e-5 * gradient.abs().max(), 1e-9), key


def test_samples_that_batch_norm_couples_are_those_of_one_process(ranks: Callable[[int], GlooPool]) -> None:
    loss, true = run_plain("resnet", 3)
    for found in ranks(2).run(run_planned, "resnet", a_plan("resnet", PINS["data"], 2, 3).to_json()):
        torch.testing.assert_close(found["loss"], loss, rtol=1e-5, atol=0)
        for key, gradient in true.items():
            error = (found["gradients"][key] - gradient).norm()
            assert error <= 1e-3 * gradient.norm() + 1e-6, key


def test_gradients_are_scattered_after_each_micro_batch_where_the_plan_says_so(
    ranks: Callable[[int], GlooPool],
) -> None:
    plan = a_plan("gpt", ("dp=2", "zero=1"), 2, 3)
    early = {key: replace(entry, reduce_scatter_every_microbatch=True) for key, entry in plan.parameters.items()}
    once, thrice = (
        ranks(2).run(run_planned, "gpt", replace(plan, parameters=entries).to_json())[0]
        for entries in (plan.parameters, early)
    )
    # The first of the three micro-batches has no target that counts, and is not run.
    assert moved_bytes(thrice["log"], "reduce_scatter") == 2 * moved_bytes(once["log"], "reduce_scatter") > 0
    for key, gradient in once["gradients"].items():
        torch.testing.assert_close(thrice["gradients"][key], gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("data", "mixed"),
        ("sharded", "bf16"),
        pytest.param("data", "bf16", marks=pytest.mark.full),
        pytest.param("sharded", "mixed", marks=pytest.mark.full),
    ],
)
def test_precision(kind: str, precision: str, ranks: Callable[[int], GlooPool]) -> None:
    loss, true = run_plain("llama")
    plan = a_plan("llama", PINS[kind], 2, 3, precision)
    for found in ranks(2).run(run_planned, "llama", plan.to_json()):
        torch.testing.assert_close(found["loss"].float(), loss, rtol=2e-2, atol=0)
        for key, gradient in true.items():
            assert found["gradients"][key].dtype == (torch.float32 if precision == "mixed" else torch.bfloat16)
            assert (found["gradients"][key].float() - gradient).norm() <= 0.05 * gradient.norm(), key
        if kind == "sharded":
            whole = {key: gradient.numel() for key, gradient in true.items()}
            program = capture(*model_and_batch("llama"))
            count, gathered, lookups = len(program.segments), 0, lookup_segments(program)
            for key, entry in plan.parameters.items():
                gathered += 2 * whole[key] * gathers(entry, chain_uses(program.uses_of(key), count, 3, lookups), 3)
            assert moved_bytes(found["log"], "all_gather") == gathered, "bf16 travels, whatever is stored"
            width = 4 if precision == "mixed" else 2
            home = [item for item in found["log"] if item.kind in ("reduce_scatter", "all_reduce") and item.bytes > 64]
            assert sum(item.bytes for item in home) == width * sum(whole.values()), "by whichever is cheaper"


class Odd(nn.Module):
    """A loss made in some way from the samples' squared distances."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.layer(x)
        if self.kind == "weights":
            return F.cross_entropy(out, y.argmax(1), weight=out.new_tensor([1.0, 2.0, 3.0]))
        squares = (out - y).square()
        penalty = 0.1 * self.layer.weight.square().sum()
        return {
            "mean": squares.mean(),
            "sum": squares.sum(),
            "per sample": squares.sum() / x.shape[0],
            "penalty": 2 * squares.mean() + penalty,
            "summed penalty": squares.sum() + penalty,
            "root": squares.mean().sqrt(),
            "product": squares.mean() * out.mean(),
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("mean", "mean"),
        ("sum", "sum"),
        ("per sample", "mean"),
        ("penalty", "mean"),
        ("summed penalty", "adds terms that average over different things"),
        ("root", "ends in aten.sqrt"),
        ("product", "two values that depend on the samples"),
        ("weights", "class weights"),
    ],
)
def test_what_a_loss_allows(kind: str, found: str) -> None:
    program = capture(Odd(kind), {"x": torch.randn(4, 4), "y": torch.randn(4, 3)})
    if found in ("mean", "sum"):
        assert averaging(program).kind == found
    else:
        with pytest.raises(PlanError, match=found):
            averaging(program)


SCALED = {
    "rows": lambda out, y: (out - y).square().sum() / out.shape[0],
    "constant": lambda out, y: (out - y).square().sum() / 8,
    "half": lambda out, y: F.mse_loss(out, y) * 0.5,
}


@pytest.mark.parametrize("kind", SCALED)
def test_losses_that_are_scaled_behind_their_reduction(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    batch, loss = (torch.randn(8, 4), torch.randn(8, 3)), SCALED[kind]
    plan = mw.plan(model, batch, cluster="local:1", loss=loss, pins=["microbatches=2"])
    expected = loss(model(batch[0]), batch[1])
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    trainer = mw.parallelize(model, plan, loss)
    torch.testing.assert_close(trainer.step(batch, global_batch=True).as_subclass(Tensor), expected.detach())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert isinstance(parameter.grad, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), gradient)


def test_a_batch_size_that_is_a_plain_number() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    program = capture(model, (torch.randn(8, 4), torch.randn(8, 3)), lambda out, y: (out - y).sum() / len(out))
    with pytest.raises(PlanError, match=r"plain number(.|\n)*`x\.shape\[0\]` for `len\(x\)`"):
        averaging(program)
