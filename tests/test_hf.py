"""A PlannedTrainer does what transformers' plain Trainer does with the same arguments and data."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import meshwright as mw
from meshwright.errors import MeshwrightError, RunError

pytest.importorskip("accelerate")

from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from meshwright.hf import PlannedTrainer

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "hf_trainer.py"
EXAMPLE = runpy.run_path(str(SCRIPT), run_name="example")
CHECKPOINTING = "activation_checkpointing"  # its name since transformers 5.23
if not hasattr(TrainingArguments, CHECKPOINTING):
    CHECKPOINTING = "gradient_checkpointing"


def arguments(folder: Path, **others: Any) -> TrainingArguments:
    """Two epochs of four full batches and one half one, with a warm-up and a decay."""
    given = {"num_train_epochs": 2, "learning_rate": 1e-2, "warmup_steps": 2, "logging_steps": 1, "save_strategy": "no"}
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "weight_decay": 0.1, "max_grad_norm": 0.5}
    return TrainingArguments(output_dir=str(folder), **(given | quiet | others))


def made() -> tuple[Any, list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(EXAMPLE["small_config"](1))
    return model, [sample | {"note": "a column that the model does not take"} for sample in EXAMPLE["rows"](36)]


@cache
def planned(pins: str = "") -> mw.Plan:
    model, samples = made()
    batch = {name: torch.stack([sample[name] for sample in samples[:8]]) for name in ("input_ids", "labels")}
    return mw.plan(model, batch, pins=pins or ())


def trained(folder: Path, plan: mw.Plan, resume: str | None = None, **others: Any) -> PlannedTrainer:
    model, samples = made()
    trainer = PlannedTrainer(model, plan, arguments(folder, **others), train_dataset=samples, eval_dataset=samples)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def plain(folder: Path, **others: Any) -> Trainer:
    model, samples = made()
    given = arguments(folder, **{"per_device_train_batch_size": 8, **others})
    trainer = Trainer(model=model, args=given, train_dataset=samples, eval_dataset=samples)
    trainer.train()
    return trainer


def figures(trainer: Trainer) -> list[list[float]]:
    names = ("loss", "grad_norm", "learning_rate", "epoch")
    return [[entry[name] for name in names] for entry in trainer.state.log_history if "grad_norm" in entry]


def assert_alike(found: list[list[float]], expected: list[list[float]]) -> None:
    assert len(found) == len(expected) > 0
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-5)


def test_losses_norms_and_schedule_are_those_of_a_plain_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of samples, a column that is left out and a smaller last batch among what is alike."""
    ours, theirs = trained(tmp_path, planned()), plain(tmp_path)
    assert "meshwright: one device\n" in capsys.readouterr().out
    assert_alike(figures(ours), figures(theirs))
    assert len(figures(ours)) == 10
    assert ours.evaluate()["eval_loss"] == pytest.approx(theirs.evaluate()["eval_loss"], rel=1e-5)
    ours.save_model(str(tmp_path / "saved"))
    back = LlamaForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    for name, tensor in theirs.model.state_dict().items():
        assert torch.allclose(back[name], tensor, atol=1e-5), name


@pytest.mark.full
def test_micro_batches_are_a_plain_trainers_gradient_accumulation(tmp_path: Path) -> None:
    ours = trained(tmp_path, planned("microbatch=2"), max_steps=4)
    theirs = plain(tmp_path, max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert ours.run.plan.microbatches == 2
    assert_alike([row[:3] for row in figures(ours)], [row[:3] for row in figures(theirs)])  # epochs count batches


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    first = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    when = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 2}
    whole = trained(tmp_path, planned(), **when, **first)
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-10"}
    evaluated = [entry["eval_loss"] for entry in whole.state.log_history if "eval_loss" in entry]
    assert evaluated[0] > evaluated[-1]
    assert whole.evaluate()["eval_loss"] == pytest.approx(evaluated[0], rel=1e-6), "the weights of the `best` one"
    again = trained(tmp_path / "again", planned(), resume=str(tmp_path / "checkpoint-3"))
    assert figures(again) == figures(whole), "the first three are in the checkpoint"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2.*\n.*\n.*global_batch"),
        ({"bf16": True}, "bf16=True.*\n.*\n.*precision='mixed'"),
        ({CHECKPOINTING: True}, f"{CHECKPOINTING}=True"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha=5.0"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True"),
        ({"torch_compile": True}, "torch_compile=True.*\n.*\n.*compile=True"),
        ({"per_device_train_batch_size": 3}, "per_device_train_batch_size=3 on 1 process.*\n.*8 rows"),
        ({"optim": "adalomo"}, "optim=.*adalomo"),
    ],
)
def test_what_a_plan_decides_is_refused_by_name(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=said):
        PlannedTrainer(torch.nn.Linear(1, 1), planned(), arguments(tmp_path, **given))


def test_other_losses_and_plans_are_refused_by_name(tmp_path: Path) -> None:
    class Weighted(PlannedTrainer):
        def compute_loss(self, *_: Any, **__: Any) -> Any: ...

    with pytest.raises(RunError, match=r"Weighted\.compute_loss"):
        Weighted(torch.nn.Linear(1, 1), planned(), arguments(tmp_path))
    with pytest.raises(RunError, match="compute_loss_func"):
        PlannedTrainer(torch.nn.Linear(1, 1), planned(), arguments(tmp_path), compute_loss_func=print)
    with pytest.raises(RunError, match="a str as the plan"):
        PlannedTrainer(torch.nn.Linear(1, 1), "plan.json", arguments(tmp_path))


@pytest.mark.full
def test_a_checkpoint_of_a_plain_trainer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(RunError, match="has no folder meshwright"):
        trained(tmp_path, planned(), resume=str(tmp_path / "checkpoint-3"))
    with pytest.raises(RunError, match=r"there is no such folder(.|\n)*checkpoint-3"):
        trained(tmp_path, planned(), resume=str(tmp_path / "checkpoint-4"))


def test_without_transformers_one_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "meshwright.hf")
    with pytest.raises(MeshwrightError, match=r"(?s)without transformers' Trainer.*pip install 'meshwright\[hf\]'"):
        import meshwright.hf  # noqa: F401


@pytest.mark.full
def test_two_ranks_print_the_losses_of_a_plain_trainer() -> None:
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = []
    for words in ([*ranks, str(SCRIPT)], [sys.executable, str(SCRIPT), "--plain"]):
        done = subprocess.run([*words, "--steps", "6", "--layers", "1"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        said.append([float(figure) for figure in re.findall(r"\d\.\d{6}", done.stdout.splitlines()[-1])])
    assert len(said[0]) == 3
    assert said[0] == pytest.approx(said[1], rel=1e-5)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # torch's, where there is no GPU
def test_the_lines_of_the_docs_train_and_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "hf_trainer.md").read_text()
    monkeypatch.chdir(tmp_path)
    model, samples = made()
    batch = {name: torch.stack([sample[name] for sample in samples[:8]]) for name in ("input_ids", "labels")}
    names: dict[str, Any] = {"model": model, "batch": batch, "samples": samples, "held_out": samples}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert (tmp_path / "out" / "config.json").is_file()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [f"checkpoint-{step}" for step in (10, 20, 30)]
    assert names["trainer"].state.global_step == 30
