"""A Trainer of transformers under a plan does what a plain one does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import meshwright as mw

pytest.importorskip("accelerate")

from transformers import LlamaForCausalLM, Trainer, TrainingArguments

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "hf_trainer.py"), run_name="example")
CHECKPOINTING = "activation_checkpointing"  # its name since transformers 5.23
if not hasattr(TrainingArguments, CHECKPOINTING):
    CHECKPOINTING = "gradient_checkpointing"


def arguments(folder: Path, **others: Any) -> TrainingArguments:
    given = {"max_steps": 4, "learning_rate": 1e-2, "optim": "adamw_torch", "logging_steps": 1, "save_strategy": "no"}
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "weight_decay": 0.1, "max_grad_norm": 0.5}
    return TrainingArguments(output_dir=str(folder), **(given | quiet | others))


def made() -> tuple[Any, list[dict[str, torch.Tensor]], mw.Plan]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(EXAMPLE["small_config"](1))
    samples = EXAMPLE["rows"](32)
    batch = {name: torch.stack([sample[name] for sample in samples[:8]]) for name in samples[0]}
    return model, samples, mw.plan(model, batch)


def figures(trainer: Trainer) -> list[tuple[float, float]]:
    trainer.train()
    return [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]


def test_losses_and_norms_are_those_of_a_plain_trainer(tmp_path: Path) -> None:
    model, samples, plan = made()
    planned = EXAMPLE["PlannedTrainer"](model, plan, arguments(tmp_path), train_dataset=samples, eval_dataset=samples)

    class Plain(Trainer):
        """Reads the same batches."""

        def get_train_dataloader(self) -> Any:
            return mw.loader(self.train_dataset, plan, seed=self.args.seed)

    other, same, _ = made()
    plain = Plain(model=other, args=arguments(tmp_path), train_dataset=same, eval_dataset=same)
    found, expected = figures(planned), figures(plain)
    assert len(found) == 4
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-5)
    assert found[-1][0] < found[0][0]
    assert planned.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)
    planned.save_model(str(tmp_path / "saved"))
    back = LlamaForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    for name, tensor in other.state_dict().items():
        assert torch.allclose(back[name], tensor, atol=1e-5), name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"save_strategy": "steps"}, "save_strategy"),
        ({CHECKPOINTING: True}, "activation_checkpointing"),
    ],
)
def test_what_the_plan_decides_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        EXAMPLE["PlannedTrainer"](None, None, arguments(tmp_path, **given))


@pytest.mark.full
def test_the_lines_of_the_docs_train_and_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "hf_trainer.md").read_text()
    first, callback = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    model, samples, _ = made()
    batch = {name: torch.stack([sample[name] for sample in samples[:8]]) for name in samples[0]}
    names = {"mw": mw, "PlannedTrainer": EXAMPLE["PlannedTrainer"], "model": model, "batch": batch}
    names |= {"args": arguments(tmp_path), "samples": samples, "held_out": samples}
    exec(first, names)
    assert (tmp_path / "out" / "config.json").is_file()
    exec(callback, names)
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith("step"))
    assert saved == ["step-000006", "step-000008"], "four steps were taken before"
