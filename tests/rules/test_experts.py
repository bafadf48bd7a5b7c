"""Mixtures of experts: found in models, run with experts on different ranks, and planned so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from processes import GlooPool
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.execute import run
from meshwright.capture.experts import MIX
from meshwright.capture.program import Op, Program
from meshwright.cluster import load_cluster, logical_mesh
from meshwright.layout import Collective
from meshwright.models.moe import Experts, MoE
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.profile import backward_flops, forward_flops, saved
from meshwright.rules import strategies, strategy
from meshwright.rules.prove import case

BATCH, SEQ, HIDDEN, COUNT = 64, 16, 64, 16


class Layer(nn.Module):
    """A layer of experts, whose tokens have a gradient, before a mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HIDDEN))
        self.experts = Experts(HIDDEN, 4 * HIDDEN, COUNT, top=2, gated=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.experts(x * self.scale)[0], y)


def layer() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Layer()
    with torch.no_grad():
        for weight in model.experts.parameters():
            weight.mul_(10)
    return model, {"x": torch.randn(BATCH, SEQ, HIDDEN), "y": torch.randn(BATCH, SEQ, HIDDEN)}


def mixtures(program: Program) -> list[Op]:
    return [op for graph in program.graphs for op in graph.at(program.batch).ops if op.target == MIX]


def tokens(vocab: int = 96) -> dict[str, Tensor]:
    return {"tokens": torch.randint(0, vocab, (6, 12)), "targets": torch.randint(0, vocab, (6, 12))}


@pytest.mark.parametrize(
    ("balance", "gated"),
    [
        (0.0, False),
        (0.01, True),
        pytest.param(0.0, True, marks=pytest.mark.full),
        pytest.param(0.01, False, marks=pytest.mark.full),
    ],
)
def test_the_family_is_captured_with_one_op_per_mixture(gated: bool, balance: float) -> None:
    torch.manual_seed(0)
    model, batch = MoE(3, 48, 6, 6, 48, 96, 4, 2, gated, False, 1e4, balance), tokens()
    program = capture(model, batch)
    assert {dict(op.kwargs)["experts"] for op in mixtures(program)} == {4}
    assert not [o for graph in program.graphs for o in graph.ops if "grouped" in o.target or "sort" in o.target]
    loss, _ = run(program, dict(model.named_parameters()), batch, torch.device("cpu"))
    assert loss.item() == pytest.approx(model(**batch).item(), rel=1e-6)


def test_mixtral_is_captured_with_one_op_per_mixture() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=6,
        vocab_size=96, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model, batch = transformers.MixtralForCausalLM(config), tokens()
    batch = {"input_ids": batch["tokens"], "labels": batch["targets"]}
    program = capture(model, batch)
    assert mixtures(program)
    assert not [o for graph in program.graphs for o in graph.ops if "grouped" in o.target]
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    loss, _ = run(program, held, batch, torch.device("cpu"))
    assert loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-6)


def test_what_reads_inside_a_mixture_keeps_it_open() -> None:
    class Peeking(Layer):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            found: list[Tensor] = []
            inner = self.experts.mlp

            def spied(rows: Tensor, ends: Tensor) -> Tensor:
                found.append(inner(rows, ends))
                return found[0]

            self.experts.mlp = spied
            output = self.experts(x * self.scale)[0]
            del self.experts.mlp
            return F.mse_loss(output, y) + found[0].mean()

    batch = layer()[1]
    assert not mixtures(capture(Peeking(), batch))


def test_flops_and_what_is_kept_are_those_of_the_ops_inside() -> None:
    (op,) = mixtures(capture(*layer()))
    program = capture(*layer())
    values = program.graphs[0].at(BATCH).values()
    rows = BATCH * SEQ * 2
    assert forward_flops(op, values) == 2 * 2 * rows * HIDDEN * 4 * HIDDEN
    assert backward_flops(op, values) == 2 * forward_flops(op, values)
    x = torch.randn(64, 16, requires_grad=True)
    chosen, weights = torch.randint(0, 4, (64, 2)), torch.rand(64, 2, requires_grad=True)
    params = torch.randn(4, 16, 32, requires_grad=True), torch.randn(4, 32, 16, requires_grad=True)
    body = dict(op.kwargs)["body"]
    small = case(MIX, x, chosen, weights, params[::-1], body=body, experts=4)
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if all(storage.data_ptr() != weight.untyped_storage().data_ptr() for weight in params):
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    from meshwright.capture.experts import mix

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = mix(x, chosen, weights, params[::-1], body=body, experts=4)
    assert result.shape == (64, 16)
    assert saved(small.op, small.values()).auxiliary_bytes == pytest.approx(sum(found.values()), rel=0.02)


def test_tokens_go_to_their_experts_and_come_back_in_four_exchanges() -> None:
    program = capture(*layer())
    (op,) = mixtures(program)
    values, mesh = program.graphs[0].at(BATCH).values(), logical_mesh({"ep": 4})
    assert [found.text for found in strategies(op, values, mesh)] == ["-", "t", "e", "x"]
    made = strategy(op, values, mesh, "x")
    rows = Collective("all_to_all", "ep", BATCH * SEQ // 4 * 2 * HIDDEN * 4)
    counts = Collective("all_gather", "ep", 4 * COUNT * 8)
    assert made.collectives_forward == (counts, rows, rows)
    assert made.collectives_backward == (rows, rows)
    assert {str(layout) for layout in made.operands} == {"[S(0)]"}


def train(rank: int, plan_json: bytes) -> dict[str, Any]:
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch = layer()
    trainer = parallelize(model, Plan.from_json(plan_json))
    with record() as log:
        loss = trainer.step(batch, global_batch=True).item()
    gradients = {name: parameter.grad.full_tensor() for name, parameter in trainer.named_parameters()}
    return {"loss": loss, "gradients": gradients, "collectives": list(log)}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_experts_apart_train_as_one_process_does(ranks: Callable[[int], GlooPool], size: int) -> None:
    """Samples apart and no state sharded: the best plan sends tokens to experts, four exchanges in all."""
    model, batch = layer()
    plan = make_plan(capture(model, batch), load_cluster(f"local:{size}"), pins=(f"dp={size}", "zero=0"))
    assert Counter(c.kind for c in plan.predicted.collectives)["all_to_all"] == 4
    assert plan.parameters["experts.up"].compute == "[S(0)]"
    loss = model(**batch)
    loss.backward()
    for found in ranks(size).run(train, plan.to_json()):
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert Counter(found["collectives"]) == Counter(plan.predicted.collectives)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(found["gradients"][name], parameter.grad, rtol=1e-4, atol=1e-6), name
