"""One rank is given a bad batch: it says what is wrong, the others say which rank it was, nobody waits."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from processes import copies
from small_models import small_model

import meshwright as mw
from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.planner.plan import make_plan
from meshwright.runtime.step.ranges import Range, ranges_of


def rank_of(rank: int, port: str, folder: Path, stay: bool) -> None:
    """One rank, whose second batch is bad if it is rank 1. stay: it then does something else, for long."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with (folder / f"errors-{rank}").open("w") as errors:
        os.dup2(errors.fileno(), 2)
    model, batch = small_model("gpt")
    trainer = mw.parallelize(model, mw.Plan.load(folder / "plan.json"))
    part = {name: tensor[3 * rank : 3 * rank + 3].clone() for name, tensor in batch.items()}
    trainer.step(part)
    if rank == 1:
        part["targets"][1, :2] = torch.tensor([0, 500])
        if stay:
            with suppress(mw.MeshwrightError):
                trainer.step(part)
            time.sleep(600)
    trainer.step(part)


def run(folder: Path, *, stay: bool = False) -> list[tuple[int | None, str]]:
    """Exit code and errors of each of two ranks, which nobody ends."""
    plan = make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=["dp=2", "mesh=2"])
    plan.save(folder / "plan.json")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [copies().Process(target=rank_of, args=(rank, port, folder, stay)) for rank in range(2)]
    try:
        for process in ranks:
            process.start()
        ranks[0].join(180)
        if stay:
            ranks[1].kill()
        ranks[1].join(180)
        return [(one.exitcode, (folder / f"errors-{rank}").read_text()) for rank, one in enumerate(ranks)]
    finally:
        for process in ranks:
            process.kill()


def test_others_name_the_rank_whose_batch_is_bad(tmp_path: Path) -> None:
    (first, waiting), (second, failing) = run(tmp_path)
    assert "RunError: batch tensor 'targets' holds numbers from 0 to 500" in failing
    assert "expected: 0 to 95, the classes of the loss, or -100, which is ignored" in failing
    assert "LostError: rank 1 failed: batch tensor 'targets' holds numbers from 0 to 500" in waiting
    assert "gloo" not in waiting
    assert (first, second) == (1, 1)


@pytest.mark.full
def test_others_end_though_the_rank_stays(tmp_path: Path) -> None:
    (code, waiting), _ = run(tmp_path, stay=True)
    assert waiting.startswith("meshwright: rank 1 failed: batch tensor 'targets'")
    assert code == 3


def test_what_a_batch_may_hold() -> None:
    model, batch = small_model("gpt")
    found = ranges_of(capture(model, batch))
    assert found["tokens"] == Range(96, None, "the rows of an embedding")
    assert found["targets"] == Range(96, -100, "the classes of the loss")
    found["targets"].check("targets", torch.tensor([0, 95, -100]))
    for name, wrong in (("tokens", -100), ("tokens", 96), ("targets", -1), ("targets", 96)):
        with pytest.raises(RunError, match=f"tensor '{name}' holds numbers from {min(0, wrong)} to {max(0, wrong)}"):
            found[name].check(name, torch.tensor([0, wrong]))


class Shifted(torch.nn.Module):
    """Reads all targets but the first, which may be anything."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 4)
        self.head = torch.nn.Linear(4, 8)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        read = torch.nn.functional.pad(targets, (0, 1), value=-100)[:, 1:].reshape(-1)
        return torch.nn.functional.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), read)


def test_what_is_left_out_may_be_anything() -> None:
    batch = {"tokens": torch.zeros(2, 3, dtype=torch.int64), "targets": torch.zeros(2, 3, dtype=torch.int64)}
    found = ranges_of(capture(Shifted(), batch))
    assert found["tokens"].whole
    assert found["targets"] == Range(8, -100, "the classes of the loss", whole=False)
