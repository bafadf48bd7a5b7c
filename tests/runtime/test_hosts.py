"""`meshwright train` on two hosts, joined by torchrun's rendezvous over a shaped link."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import pytest

from meshwright.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "shaped"))
from network import Host, shaped_network, why_not

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(why_not() is not None, reason=f"not run, so not passed: {why_not()}"),
]
MODEL = "gpt?layers=1&hidden=16&heads=2&ffn=32&vocab=128&seq=16"
SHARED = [MODEL, "--global-batch", "6", "--lr", "1e-2", "--steps", "4"]
HOSTS = [Host("a", "200mbit"), Host("b", "200mbit")]


@pytest.mark.parametrize("given", [("--cluster", "local:2"), ()], ids=["named", "measured"])
def test_two_hosts_train_as_one_process_does(given: tuple[str, ...], tmp_path: Path) -> None:
    alone, together = tmp_path / "alone.json", tmp_path / "together.json"
    assert main(["train", *SHARED, "--nproc", "1", "--json", str(alone)]) == 0
    words = ["train", *SHARED, *given, "--json", str(together)]
    with shaped_network(HOSTS) as network:
        end = f"{network.address(0)}:{29000 + secrets.randbelow(2000)}"
        torchrun = (
            f"exec {sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --rdzv-id=hosts"
            f" --rdzv-backend=c10d --rdzv-endpoint={end} --local-addr=10.77.0.$((RANK + 1))"
            " --rdzv-conf=is_host=$((RANK == 0)) -m meshwright " + " ".join(f"'{word}'" for word in words)
        )
        printed = network.run(["sh", "-c", torchrun], [1, 1], timeout_s=600)
    found = json.loads(together.read_text())
    assert found["losses"] == pytest.approx(json.loads(alone.read_text())["losses"], rel=1e-4), printed
    assert len({rank for stage in found["plan"]["stages"] for rank in stage["mesh"]["ranks"]}) == 2
    assert "on 2 processes" in printed[0]
    assert "loss" not in printed[1], "rank 0 speaks alone"
