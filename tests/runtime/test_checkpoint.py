"""A checkpoint written under one plan goes on under another; weights come from files or from nowhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import small_model
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader

from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError
from meshwright.models.gpt import GPT
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.runtime.state.folder import latest
from meshwright.runtime.state.index import read_index
from meshwright.runtime.state.sums import text_sum


def a_plan(size: int, *pins: str, name: str = "gpt") -> bytes:
    return make_plan(capture(*small_model(name, "float64")), load_cluster(f"local:{size}"), pins=pins).to_json()


class Numbers:
    """Six times as many samples as a batch has, the same for every plan."""

    def __len__(self) -> int:
        return 36

    def __getitem__(self, index: int, /) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 96, (13,), generator=generator)
        return {"tokens": tokens[:-1], "targets": tokens[1:]}


def run_steps(rank: int, plan_json: bytes, folder: str, steps: int, resume: bool, save: bool) -> dict[str, Any]:
    import meshwright as mw

    plan = Plan.from_json(plan_json)
    trainer = mw.parallelize(small_model("gpt", "float64")[0], plan)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2 if not resume else 7.0)
    data = mw.loader(Numbers(), plan, seed=3)
    torch.manual_seed(99 if resume else 1)
    found = mw.load(trainer, optimizer, folder, loader=data) if resume else None
    losses: list[float] = []
    while len(losses) < steps:
        for batch in data:
            losses.append(trainer.step(batch).item())
            optimizer.step()
            optimizer.zero_grad()
            if len(losses) == steps:
                break
    if save:
        mw.save(trainer, optimizer, folder, loader=data, extra={"note": "half way"})
    rate = optimizer.param_groups[0]["lr"]
    return {"losses": losses, "extra": found and found.extra, "rate": rate, "random": torch.rand(1).item()}


def test_saved_on_two_by_two_and_read_on_three(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    whole = ranks(1).run(run_steps, a_plan(1), str(tmp_path / "none"), 8, False, False)[0]
    square, line = a_plan(4, "dp=2", "tp=2", "zero=3"), a_plan(3, "dp=3", "zero=1")
    first = ranks(4).run(run_steps, square, str(tmp_path), 4, False, True)
    second = ranks(3).run(run_steps, line, str(tmp_path), 4, True, False)
    for before, after in zip(first, second, strict=False):
        assert before["losses"] + after["losses"] == pytest.approx(whole["losses"], rel=1e-9)
        assert after["extra"] == {"note": "half way"}
        assert after["rate"] == 1e-2, "the optimizer's settings come from the checkpoint"
        assert after["random"] == first[0]["random"], "random numbers go on where they were"


PICKLE = b"cos\n_exit\n(I7\ntR."
"""What ends the process that reads it."""


def edits(summary: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Summaries that somebody changed, and whose sum he made anew."""
    del summary["sum"]
    yield summary, "has no checksum"
    sums = {name for name in summary["files"] if name.endswith(".sums")}
    bare = {name: size for name, size in summary["files"].items() if name not in sums}
    for change, why in (
        ({"optimizer": "Adagrad"}, "Adagrad, whose state was saved"),
        ({"sums": {}, "files": bare}, "has no checksums"),
        ({"files": summary["files"] | {"../meshwright.json": 3}}, "files in its own folder"),
        ({"step": "three"}, "is damaged"),
        ({"format": 1}, "--trust"),
    ):
        edited = summary | change
        yield edited | {"sum": text_sum(edited)}, why


def check_index(folder: Path, summary: dict[str, Any]) -> None:
    """Our index says what DCP's pickle does."""
    theirs, ours = FileSystemReader(folder).read_metadata(), read_index(folder, summary["files"])
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def refusals(rank: int, plan_json: bytes, folder: str, name: str) -> str:
    import meshwright as mw

    trainer = mw.parallelize(small_model(name, "float64")[0], Plan.from_json(plan_json))
    try:
        mw.load(trainer, torch.optim.AdamW(trainer.parameters()), folder)
    except MeshwrightError as error:
        return str(error)
    return ""


def test_what_cannot_be_loaded_is_refused_by_name(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    plan = a_plan(1)
    saved = tmp_path / "saved"
    ranks(1).run(run_steps, plan, str(saved), 1, False, True)
    found = latest(saved)
    assert found is not None
    assert found.name == "step-000001"

    def message(folder: Path, name: str = "gpt") -> str:
        answer: str = ranks(1).run(refusals, plan if name == "gpt" else a_plan(1, name=name), str(folder), name)[0]
        return answer

    assert message(saved) == ""
    assert "is not there" in message(tmp_path / "nowhere")
    half = tmp_path / "half"
    (half / ".saving-step-000007").mkdir(parents=True)
    assert "half-written" in message(half)
    assert "another model" in message(saved, "llama")
    told = (found / "meshwright.json").read_text()
    listed = json.loads(told)["files"]
    assert {Path(name).suffix for name in listed} == {".distcp", ".sums", ".json", ""}
    check_index(found, json.loads(told))
    for name in ("meshwright.json", *(name for name in listed if name != ".metadata")):
        untouched = (found / name).read_bytes()
        flip_a_byte(found / name)
        assert f"{found / name.removesuffix('.sums')}" in message(saved), name
        (found / name).write_bytes(untouched)
    (found / ".metadata").unlink()
    (found / ".metadata").write_bytes(PICKLE + b"." * (listed[".metadata"] - len(PICKLE)))
    assert message(saved) == "", "DCP's index is not read, which would have run this one"
    for edited, why in edits(json.loads(told)):
        (found / "meshwright.json").write_text(json.dumps(edited))
        assert why in message(saved), why
    (found / "meshwright.json").write_text(told)
    largest = max(listed, key=listed.__getitem__)
    (found / largest).write_bytes((found / largest).read_bytes()[:-1])
    assert "as when it was saved" in message(saved)
    (found / largest).unlink()
    assert "not there" in message(saved)


def save_twice(rank: int, plan_json: bytes, folder: str) -> None:
    import meshwright as mw

    model, batch = small_model("gpt", "float64")
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.AdamW(trainer.parameters())
    for _ in range(2):
        trainer.step(batch, global_batch=True)
        optimizer.step()
        mw.save(trainer, optimizer, folder)


def past_damage(rank: int, plan_json: bytes, folder: str) -> tuple[str, bool, int, tuple[str, ...], list[str]]:
    import meshwright as mw

    trainer = mw.parallelize(small_model("gpt", "float64")[0], Plan.from_json(plan_json))
    optimizer = torch.optim.AdamW(trainer.parameters())
    before = [parameter.data.to_local().clone() for parameter in trainer.parameters()]  # type: ignore[attr-defined]
    try:
        mw.load(trainer, optimizer, folder)
        refused = ""
    except MeshwrightError as error:
        refused = str(error)
    now = [parameter.data.to_local() for parameter in trainer.parameters()]  # type: ignore[attr-defined]
    untouched = all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    found = mw.load(trainer, optimizer, folder, skip_damaged=True)
    mw.save(trainer, optimizer, folder, keep=1)
    left = sorted(path.name for path in Path(folder).glob("step-*"))
    trainer.steps = 3
    mw.save(trainer, optimizer, folder, keep=2)
    assert (Path(folder) / "step-000001").exists(), "what was found damaged does not count among the two that are kept"
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(Path(folder) / "step-000003")
    return refused, untouched, found.step, found.passed_over, left


def test_what_one_rank_finds_damaged_all_pass_over(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    plan = a_plan(2, "dp=2", "zero=3")
    ranks(2).run(save_twice, plan, str(tmp_path))
    damaged = tmp_path / "step-000002" / "__1_0.distcp"
    flip_a_byte(damaged)
    for refused, untouched, step, passed_over, left in ranks(2).run(past_damage, plan, str(tmp_path)):
        assert f"{damaged} is damaged: bytes" in refused
        assert f"to do: load {tmp_path / 'step-000001'}" in refused
        assert untouched, "it is refused before anything is read"
        assert step == 1
        assert [str(damaged) in line for line in passed_over] == [True]
        assert left == ["step-000001", "step-000002"], "a later one is no reason to remove what was just saved"
    flip_a_byte(tmp_path / "step-000001" / "__0_0.distcp")
    for refused in ranks(2).run(past_nothing, plan, str(tmp_path)):
        assert "none of the 2 checkpoints is whole: " in refused
        assert all(f"step-00000{step}" in refused for step in (1, 2))
        assert "restore one, or start anew in another folder" in refused


def past_nothing(rank: int, plan_json: bytes, folder: str) -> str:
    import meshwright as mw

    trainer = mw.parallelize(small_model("gpt", "float64")[0], Plan.from_json(plan_json))
    with pytest.raises(MeshwrightError) as caught:
        mw.load(trainer, torch.optim.AdamW(trainer.parameters()), folder, skip_damaged=True)
    return str(caught.value)


def sourced(rank: int, plan_json: bytes, folder: str) -> dict[str, Any]:
    """The same loss from a model, from its weights in a file, and from several files."""
    import meshwright as mw

    plan = Plan.from_json(plan_json)
    model, batch = small_model("gpt", "float64")
    trainer = mw.parallelize(model, plan)
    mw.export(trainer, Path(folder) / "model.safetensors")
    mw.export(trainer, Path(folder) / "several", file_bytes=40_000)
    with torch.device("meta"):
        empty = build().double()
    losses = [trainer.step(batch, global_batch=True).item()]
    for source in ("model.safetensors", "several"):
        again = mw.parallelize(empty, plan, weights=Path(folder) / source, copy=True)
        losses.append(again.step(batch, global_batch=True).item())
    try:
        mw.parallelize(empty, plan)
        refused = ""
    except MeshwrightError as error:
        refused = str(error)
    return {"losses": losses, "refused": refused}


def test_weights_go_to_files_and_come_from_files(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    from safetensors.torch import load_file

    for found in ranks(2).run(sourced, a_plan(2, "dp=2", "zero=3"), str(tmp_path)):
        assert found["losses"] == [found["losses"][0]] * 3
        assert "meta device" in found["refused"]
    plain = small_model("gpt", "float64")[0]
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert len(list((tmp_path / "several").glob("model-*.safetensors"))) > 1
    for name, tensor in small_model("gpt", "float64")[0].state_dict().items():
        assert torch.equal(plain.state_dict()[name], tensor), name


def build() -> nn.Module:
    return GPT(layers=2, hidden=48, heads=6, ffn=96, vocab=96, seq=12, tied=True)


def built(rank: int, plan_json: bytes) -> tuple[float, dict[str, torch.Tensor]]:
    import meshwright as mw

    trainer = mw.parallelize(build, Plan.from_json(plan_json), seed=5)
    loss = trainer.step(small_model("gpt")[1], global_batch=True).item()
    return loss, {name: tensor.full_tensor() for name, tensor in trainer.state_dict().items()}  # type: ignore[attr-defined]


def test_weights_made_on_the_fly_are_the_same_under_every_plan(ranks: Callable[[int], GlooPool]) -> None:
    program = capture(*small_model("gpt"))
    plans = {
        size: make_plan(program, load_cluster(f"local:{size}"), pins=pins).to_json()
        for size, pins in ((1, ()), (2, ("dp=2", "zero=3")))
    }
    (loss, state), *_ = ranks(1).run(built, plans[1])
    for other, pieces in ranks(2).run(built, plans[2]):
        assert other == pytest.approx(loss, rel=1e-6)
        for name, tensor in state.items():
            assert torch.equal(pieces[name], tensor), name
    weight = state["layers.0.up.weight"]
    assert 0.018 < weight.std() < 0.022, "as the model's own initialisation says"
    assert torch.equal(state["norm.weight"], torch.ones(48))
    assert not torch.equal(weight, state["layers.1.up.weight"])
