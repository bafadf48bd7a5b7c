"""One rank is given a bad batch: it says what is wrong, the others say which rank it was, nobody waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.runtime.step.ranges import Range, ranges_of
from meshwright.solve.plan import make_plan

RANK = """
import sys, time
sys.path.insert(0, sys.argv[2])
import torch, torch.distributed as dist
import meshwright as mw
from small_models import small_model
model, batch = small_model("gpt")
trainer = mw.parallelize(model, mw.Plan.load(sys.argv[1]))
rows = slice(3 * dist.get_rank(), 3 * dist.get_rank() + 3)
part = {name: tensor[rows].clone() for name, tensor in batch.items()}
trainer.step(part)
if dist.get_rank() == 1:
    part["targets"][1, :2] = torch.tensor([0, 500])
    if "stay" in sys.argv:
        try:
            trainer.step(part)
        except mw.MeshwrightError:
            time.sleep(600)
trainer.step(part)
"""


def run(folder: Path, *words: str) -> list[tuple[int, str]]:
    """Exit code and errors of each of two ranks, which nobody ends."""
    plan = make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=["dp=2", "mesh=2"])
    plan.save(folder / "plan.json")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-c", RANK, str(folder / "plan.json"), str(Path(__file__).parents[1]), *words]
        environment = os.environ | place | {"OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        first = ranks[0].communicate(timeout=180)[1]
        if words:
            ranks[1].kill()
        return [(ranks[0].returncode, first), (ranks[1].wait(180), ranks[1].communicate()[1])]
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
    (code, waiting), _ = run(tmp_path, "stay")
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
