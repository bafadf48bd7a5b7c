"""An adopted model's outputs, whole weights for `generate` and `save_pretrained`, and what is refused with words."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool, forked
from small_models import small_model
from torch import Tensor, nn

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

README = (Path(__file__).parents[2] / "README.md").read_text()
RUNNING = (Path(__file__).parents[2] / "docs" / "running.md").read_text()


def block_with(word: str, page: str) -> str:
    return next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if word in block)


def llama_batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = [torch.randint(0, 64, (4, 16), generator=generator) for _ in range(3)]
    return [{"input_ids": ids, "labels": torch.where(ids > 50, -100, ids)} for ids in found]


def llama_config() -> Any:
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 64}
    return LlamaConfig(vocab_size=64, num_attention_heads=4, num_key_value_heads=2, **sizes)


def readme_llama(rank: int, folder: str) -> tuple[list[float], list[int]]:
    torch.set_num_threads(1)  # the threads of the process that this is a copy of are not here
    warnings.simplefilter("ignore", UserWarning)  # what `generate` says of lengths
    torch.manual_seed(0)
    losses: list[float] = []
    names = {"config": llama_config(), "batches": llama_batches(), "folder": folder, "print": losses.append}
    exec(block_with("LlamaForCausalLM", README), names)
    prompt = llama_batches()[0]["input_ids"][:1, :4]
    ids: Tensor = names["whole"].generate(prompt, max_new_tokens=5, do_sample=False)
    with contextlib.chdir(Path(folder).parent):
        exec(block_with("whole.generate", RUNNING), names | {"prompt": prompt})
    return losses, ids[0].tolist()


def test_the_lines_of_the_readme_train_save_and_generate(tmp_path: Path) -> None:
    """On copies of this process: to import `transformers` once more in each takes longer than all else."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, losses = transformers.LlamaForCausalLM(llama_config()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in llama_batches():
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    found = forked(2, readme_llama, str(tmp_path / "first"))
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "first")
    assert (tmp_path / "out" / "config.json").is_file(), "the lines of docs/running.md"
    for (name, one), other in zip(loaded.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
    ids = llama_batches()[0]["input_ids"][:1, :4]
    told = loaded.generate(ids, max_new_tokens=5, do_sample=False)[0].tolist()
    for own, generated in found:
        assert own == pytest.approx(losses, rel=1e-5)
        assert generated == told


class Layers(nn.Module):
    """Layers in a list, a head tied to the embedding, a buffer, outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(24, 12), nn.Linear(12, 24, bias=False)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(4))
        self.register_buffer("scale", torch.full((12,), 0.7))
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x) * self.scale
        return {"logits": self.head(x), "hidden": x}


def loss_of(output: dict[str, Tensor], targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["logits"].flatten(0, 1), targets.flatten())


def layers() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Layers().double(), {"tokens": torch.randint(0, 24, (6, 5)), "targets": torch.randint(0, 24, (6, 5))}


def outputs(rank: int, plan_json: bytes) -> dict[str, Any]:
    model, batch = layers()
    true = copy.deepcopy(model)(batch["tokens"])
    plain = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer = mw.parallelize(model, Plan.from_json(plan_json), loss_of)
    own = trainer({"tokens": batch["tokens"][rank : rank + 2]})["logits"]
    shared = trainer.predict({"tokens": batch["tokens"][:5]})
    names = [name for name, _ in model.named_parameters()]
    with trainer.gathered() as whole:
        inside = whole(batch["tokens"])["logits"]
        equal = all(torch.equal(dict(whole.named_parameters())[name], tensor) for name, tensor in plain.items())
        tied = whole.head.weight is whole.embed.weight
        with torch.no_grad():
            whole.embed.weight.mul_(2)
        doubled = loss_of(whole(batch["tokens"]), batch["targets"]).item()
    assert [name for name, _ in model.named_parameters()] == names
    return {
        "own": torch.equal(own, true["logits"][rank : rank + 2]),
        "shared": all(torch.allclose(shared[key], true[key][:5], rtol=1e-12) for key in true),
        "inside": torch.equal(inside, true["logits"]) and equal and tied,
        "written": trainer.evaluate(batch, global_batch=True).item() == pytest.approx(doubled, rel=1e-12),
    }


@pytest.mark.parametrize("pins", [("dp=2", "zero=3"), ("tp=2",), ("pp=2",)])
def test_outputs_are_the_models(pins: tuple[str, ...], ranks: Callable[[int], GlooPool]) -> None:
    model, batch = layers()
    plan = make_plan(capture(model, batch, loss_of), load_cluster("local:2"), pins=pins)
    for found in ranks(2).run(outputs, plan.to_json()):
        assert all(found.values()), found


def gpt() -> tuple[nn.Module, dict[str, Tensor], Plan]:
    model, batch = small_model("gpt")
    return model, batch, make_plan(capture(model, batch), load_cluster("local:1"))


def test_habits_from_other_loops_are_refused_with_words() -> None:
    model, batch, plan = gpt()
    trainer = mw.parallelize(model, plan)
    loss = trainer.step(batch)
    for computed in (loss, loss / 2, torch.stack([loss, loss]).mean(), 0.5 * loss + 1):
        with pytest.raises(RunError, match=r"leave out loss\.backward"):
            computed.backward()
    saved = io.BytesIO()
    torch.save({"loss": loss}, saved)
    saved.seek(0)
    assert type(torch.load(saved, weights_only=True)["loss"]) is Tensor
    assert repr(loss) == f"tensor({loss.item():.4f})"
    with pytest.raises(RunError, match=r"call trainer\.step to train"):
        model(**batch)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RunError, match=r"inside torch\.autocast"):
        trainer.step(batch)
    with trainer.gathered(), pytest.raises(RunError, match=r"inside trainer\.gathered"):
        trainer.step(batch)
    copied = copy.deepcopy(model)
    assert copied.forward.__self__ is copied


def test_everything_works_in_inference_mode() -> None:
    torch.manual_seed(0)
    own, batch = layers()
    true = own(batch["tokens"])["logits"].detach()
    trainer = mw.parallelize(own, mw.plan(own, batch, cluster="local:1", loss=loss_of), loss_of)
    average = copy.deepcopy(own)
    with torch.inference_mode():
        for logits in (own(batch["tokens"])["logits"], trainer(batch)["logits"], average(batch["tokens"])["logits"]):
            torch.testing.assert_close(logits, true)
        told = trainer.evaluate(batch).item()
        with trainer.gathered() as whole:
            torch.testing.assert_close(whole(batch["tokens"])["logits"], true)
    assert trainer.step(batch).item() == pytest.approx(told)
    assert all(parameter.grad is not None for parameter in own.parameters())


def test_a_plan_for_gpus_is_not_started_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, _ = gpt()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = make_plan(capture(model, batch), load_cluster("local:1"))
    device = load_cluster("dgx-h100:1").mesh((8,)).device
    stages = tuple(replace(stage, mesh=replace(stage.mesh, device=device)) for stage in plan.stages)
    with pytest.raises(RunError, match="started on CPUs: torch sees no GPU"):
        mw.parallelize(model, replace(plan, stages=stages))
    assert mw.parallelize(model, replace(plan, stages=stages), device="cpu").step(batch).isfinite()


def test_a_wrong_world_size_is_refused_before_processes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, plan = gpt()
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    with pytest.raises(RunError, match="3 processes are running"):
        mw.parallelize(model, plan)


def differing(rank: int, plans: list[bytes]) -> str:
    try:
        mw.parallelize(small_model("gpt")[0], Plan.from_json(plans[rank]))
    except RunError as error:
        return str(error)
    return ""


def test_ranks_with_different_plans_are_told(ranks: Callable[[int], GlooPool]) -> None:
    program = capture(*small_model("gpt"))
    plans = [make_plan(program, load_cluster("local:2"), pins=(pin,)).to_json() for pin in ("dp=2", "tp=2")]
    assert all("rank 1 has another plan" in found for found in ranks(2).run(differing, plans))
