"""An op is marked where running the batch in parts would compute something else; parts that are run are the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import real_batch
from small_families import captured, small_family
from torch import Tensor, nn

from meshwright.capture import Program, capture
from meshwright.capture.coupling.parts import check_in_parts
from meshwright.capture.execute import run
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan

Body = Callable[[Tensor, Tensor], Tensor]
PER_SAMPLE: dict[str, Body] = {
    "mean": lambda y, x: y.mean(),
    "sum over the batch size": lambda y, x: y.sum() / x.shape[0],
    "mean over features": lambda y, x: y.mean(-1).square().sum(),
    "cross-entropy": lambda y, x: F.cross_entropy(y, x.argmax(-1)),
    "normalised": lambda y, x: F.normalize(y, dim=-1).square().sum(),
    "own entry": lambda y, x: y[torch.arange(x.shape[0]), x.argmax(-1)].sum(),
    "own entry, its number a column": lambda y, x: y[torch.arange(x.shape[0])[:, None], x.argmax(-1)[:, None]].sum(),
    "two views": lambda y, x: (lambda a, b: (a * b).sum())(*torch.cat([y, 2 * y]).chunk(2)),
    "outer products": lambda y, x: (y.T @ y).sum(),
    "einsum": lambda y, x: torch.einsum("bi,bi->b", y, y).square().sum(),
    "sorted and back": lambda y, x: (y[(o := x[:, 0].argsort())].tanh()[o.argsort()] * x).sum(),
    "sorted and added back": lambda y, x: (
        torch.zeros_like(y).index_add(0, (o := x[:, 0].argsort()), y[o].tanh()) * x
    ).sum(),
    "features sorted": lambda y, x: (y.sort(-1).values[:, 0] * x[:, 0]).sum(),
}
COUPLED: dict[str, Body] = {
    "masked mean": lambda y, x: (y * (x > 0)).sum() / (x > 0).sum(),
    "softmax over the batch": lambda y, x: y.softmax(0).square().sum(),
    "covariance": lambda y, x: (y.T @ y).square().sum(),
    "einsum over the batch": lambda y, x: torch.einsum("bi,bj->ij", y, y).square().sum(),
    "pairs": lambda y, x: (y[:, None] - y[None]).abs().sum(),
    "equal labels": lambda y, x: ((x.argmax(-1)[:, None] == x.argmax(-1)[None]) * (y @ y.T)).sum(),
    "the one before": lambda y, x: (y * y.roll(1, 0)).sum(),
    "the first": lambda y, x: (y * y[:1]).sum(),
    "centred": lambda y, x: (y - y.mean(0)).square().sum(),
    "deviation": lambda y, x: y.std(0).sum(),
    "largest": lambda y, x: y.max(),
    "root": lambda y, x: y.square().mean().sqrt(),
    "running sum": lambda y, x: y.cumsum(0).sum(),
    "shuffled": lambda y, x: (y * x[torch.randperm(x.shape[0])]).sum(),
    "sorted and left so": lambda y, x: (y[x[:, 0].argsort()] * x).sum(),
    "statistics without a buffer": lambda y, x: F.batch_norm(y, None, None, training=True).pow(3).sum(),
    "a triangle of samples": lambda y, x: (torch.ones(x.shape[0], x.shape[0]).tril() @ y).square().sum(),
}


class Around(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(5, 5)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.linear(x), x)


def is_sum_of_parts(model: nn.Module, batch: dict[str, Tensor]) -> bool:
    """Whether the loss of the batch is the mean or the sum of those of its halves."""
    half = len(next(iter(batch.values()))) // 2
    parts = [{key: tensor[part] for key, tensor in batch.items()} for part in (slice(half), slice(half, None))]
    whole, (first, second) = model(**batch), (model(**part) for part in parts)
    return any(torch.allclose(whole, made, rtol=1e-4) for made in (first + second, (first + second) / 2))


@pytest.mark.parametrize("name", [*PER_SAMPLE, *COUPLED])
def test_a_mark_says_whether_the_batch_can_be_run_in_parts(name: str) -> None:
    model, batch = Around((PER_SAMPLE | COUPLED)[name]), {"x": torch.randn(8, 5) + torch.linspace(-1, 1, 8)[:, None]}
    marks = capture(model, batch).couples_samples
    assert bool(marks) == (name in COUPLED), marks
    assert is_sum_of_parts(model, batch) == (not marks)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet", 15),
        pytest.param("wide-resnet", 12, marks=pytest.mark.full),
        pytest.param("amoebanet", 42, marks=pytest.mark.full),
    ],
)
def test_batch_norms_are_marked(name: str, count: int) -> None:
    marks = captured(name).couples_samples
    assert len(marks) == count
    assert {mark.why for mark in marks} == {"takes its statistics over the batch"}
    ops = {(segment.name, op.name): op.target for segment, op in captured(name).ops()}
    assert all("batch_norm" in ops[mark.segment, mark.op] for mark in marks)


@pytest.mark.parametrize(
    "name",
    ["gpt", "vit", *(pytest.param(name, marks=pytest.mark.full) for name in ("llama", "bert", "t5", "unet", "mlp"))],
)
def test_families_whose_samples_stay_apart(name: str) -> None:
    assert captured(name).couples_samples == ()
    assert is_sum_of_parts(*small_family(name))


def test_experts_couple_samples_by_their_balance_loss_alone() -> None:
    marks = captured("moe").couples_samples
    assert len(marks) == 3
    assert not is_sum_of_parts(*small_family("moe"))
    dropless = parse_reference("moe?layers=2&hidden=24&heads=4&kv_heads=2&ffn=16&vocab=32&seq=12&experts=4")
    batch = real_batch(dropless.shapes(4))
    assert capture(model := dropless.build(), batch).couples_samples == ()
    assert is_sum_of_parts(model, batch)


TOWER = "hidden_size=32&{0}.num_attention_heads=4&{0}.num_hidden_layers=1&{0}.intermediate_size=64"
TRANSFORMERS: dict[str, tuple[str, int]] = {
    "clip": (
        f"clip?text_config.{TOWER.format('text_config')}&vision_config.{TOWER.format('vision_config')}&seq=8"
        "&text_config.vocab_size=64&vision_config.image_size=32&vision_config.patch_size=8&projection_dim=32",
        1,
    ),
    "mixtral with its balance loss": (
        "mixtral?hidden_size=32&num_attention_heads=4&num_key_value_heads=2&num_hidden_layers=2&intermediate_size=64"
        "&vocab_size=64&seq=8&num_local_experts=4&output_router_logits=true",
        1,
    ),
    "mixtral": (
        "mixtral?hidden_size=32&num_attention_heads=4&num_key_value_heads=2&num_hidden_layers=2&intermediate_size=64"
        "&vocab_size=64&seq=8&num_local_experts=4",
        0,
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * ("balance" not in name)) for name in TRANSFORMERS]
)
def test_transformers_say_the_right_thing(name: str) -> None:
    text, count = TRANSFORMERS[name]
    assert len(capture(*parse_reference(f"hf:{text}").meta(4)).couples_samples) == count


def test_a_number_of_samples_may_divide_as_a_float() -> None:
    model = Around(lambda y, x: y.sum() / torch.sym_float(x.shape[0]))
    program: Program = capture(model, {"x": torch.randn(4, 5)})
    batch: dict[str, Any] = {"x": torch.randn(6, 5)}
    found, _ = run(program.at_batch(6), dict(model.named_parameters()), batch, torch.device("cpu"))
    assert torch.equal(found, model(**batch))


class Stateful(nn.Module):
    """kind: how a forward of the whole batch differs from two of its halves."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.last = kind, nn.Linear(5, 5), nn.Linear(5, 1)
        self.table = nn.Embedding(3, 5, scale_grad_by_freq=kind == "frequencies")
        self.norm = nn.BatchNorm1d(5) if kind == "batch norm" else nn.Identity()
        self.register_buffer("steps", torch.ones(()))
        if kind == "power iteration":
            nn.utils.parametrizations.spectral_norm(self.first)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "counter":
            self.steps += 1
        hidden = self.norm(self.first(x) / self.steps) + self.table(x.argmax(-1) % 3)
        if self.kind == "contrastive":
            return F.cross_entropy(hidden @ x.T, torch.arange(x.shape[0]))
        return self.last(hidden.tanh()).square().mean()


@pytest.mark.parametrize("kind", ["frequencies", "counter", "power iteration", "contrastive", "batch norm", "plain"])
def test_micro_batches_are_refused_where_they_would_compute_something_else(kind: str) -> None:
    program = capture(Stateful(kind), {"x": torch.randn(8, 5)})
    assert bool(program.couples_samples) == (kind != "plain")
    if kind in ("batch norm", "plain"):
        check_in_parts(program, 2)
        return
    check_in_parts(program, 1)
    with pytest.raises(PlanError, match="2 micro-batches of a model in which"):
        make_plan(program, load_cluster("local:1"), pins=("microbatch=2",))
    assert make_plan(program, load_cluster("local:1")).microbatches == 1


def test_a_refusal_of_micro_batches_names_what_calls_the_op() -> None:
    """Not the layer that the op was cut into, which may be called after another module."""

    class Contrastive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            made = self.emb(x)
            return nn.functional.cross_entropy(made @ made.T, torch.arange(x.shape[0]))

    program = capture(Contrastive(), {"x": torch.randn(8, 16)})
    with pytest.raises(PlanError, match=r"in which matmul in the model's own forward or the loss sets every sample"):
        check_in_parts(program, 2)
