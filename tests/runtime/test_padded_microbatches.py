"""A transformers model with padded masks and ignored labels, in micro-batches on two ranks: trained as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor

import meshwright as mw
from meshwright.plan import Plan


def batches() -> list[dict[str, Tensor]]:
    """Texts of different lengths: micro-batches have different numbers of labels that count."""
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(3):
        ids = torch.randint(3, 64, (8, 16), generator=generator)
        lengths = torch.randint(4, 17, (8, 1), generator=generator)
        mask = (torch.arange(16) < lengths).long()
        labels = torch.where((mask == 1) & (ids < 50), ids, -100)
        found.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return found


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=4, num_key_value_heads=2, **sizes)).double()


def state(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def trained(rank: int, plan_json: bytes) -> tuple[list[float], dict[str, Tensor]]:
    model, losses = llama(), []
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    for batch in batches():
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    with trainer.gathered() as whole:
        return losses, state(whole)


def eager() -> tuple[list[float], dict[str, Tensor]]:
    model, losses = llama(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    for batch in batches():
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, state(model)


@pytest.mark.full
@pytest.mark.parametrize(
    "pins", [("dp=2", "zero=3", "microbatch=2"), ("tp=2", "microbatch=2"), ("pp=2", "microbatch=2")]
)
def test_micro_batches_of_padded_texts_train_as_eager(pins: tuple[str, ...], ranks: Callable[[int], GlooPool]) -> None:
    pytest.importorskip("transformers")
    plan = mw.plan(llama(), batches()[0], cluster="local:2", pins=pins)
    losses, wanted = eager()
    for found, tensors in ranks(2).run(trained, plan.to_json()):
        assert found == pytest.approx(losses, rel=1e-6)
        for name, tensor in wanted.items():
            torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
