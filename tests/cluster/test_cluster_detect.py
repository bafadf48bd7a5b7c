"""Detection on real processes: any number of ranks, a rank that never joins, the command, the written file."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from meshwright.cluster import load_cluster
from meshwright.cluster.command import add_arguments
from meshwright.cluster.detect.lead import _missing
from meshwright.cluster.units import format_bytes
from meshwright.errors import ClusterError

ROOT = Path(__file__).parents[2]
COMMAND = """
import argparse, sys
from meshwright.cluster.command import add_arguments
from meshwright.errors import MeshwrightError
parser = argparse.ArgumentParser()
add_arguments(parser)
args = parser.parse_args()
try:
    sys.exit(args.run(args))
except MeshwrightError as error:
    sys.exit(str(error))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_rank(rank: int, world: int, port: int, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-W", "error::FutureWarning", "-c", COMMAND, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def detect(world: int, out: Path) -> str:
    """Run detection on `world` processes and return what rank 0 printed."""
    port = free_port()
    ranks = [start_rank(r, world, port, "detect", "--backend", "gloo", "--out", str(out)) for r in range(world)]
    try:
        printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, printed
    return printed[0]


@pytest.mark.parametrize("world", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3, 6, 8))])
def test_any_number_of_ranks_is_detected_and_written(world: int, tmp_path: Path) -> None:
    out = tmp_path / "found.toml"
    printed = detect(world, out)
    found = load_cluster(str(out))
    assert found.device_count == world
    assert found.root.levels()[-1] == "host"  # one machine: islands perhaps, but no network
    assert found.backend == "gloo"
    device = found.device(found.device_names()[0])
    assert 1e8 < device.peak_flops("float32") < 1e14
    if world > 1:
        assert "spread" in dict(found.sources)["host.bandwidth"]  # how sure it is
        assert 1e7 < found.root.link.bandwidth < 1e12
    assert f"{world} device" in printed


def test_a_rank_that_never_joins_is_named(tmp_path: Path) -> None:
    lonely = start_rank(
        0, 2, free_port(), "detect", "--backend", "gloo", "--timeout", "1", "--out", str(tmp_path / "x")
    )
    try:
        printed = lonely.communicate(timeout=60)[0]
    finally:
        lonely.kill()
    assert lonely.returncode != 0
    assert "rank 1 did not join detection within 1 s" in printed
    assert f"rank 0 on {socket.gethostname()}" in printed


def test_many_absent_ranks_cost_the_time_limit_once() -> None:
    now = 0.0

    class NobodyCame:
        def wait(self, keys: list[str], limit: timedelta) -> None:
            nonlocal now
            now += limit.total_seconds()
            raise dist.DistError("nobody")

    assert _missing(NobodyCame(), 64, 60.0, lambda: now) == list(range(64))  # type: ignore[arg-type]
    assert now < 61.0


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({}, ["--timeout", "-3"], "--timeout -3"),
        ({}, ["--out", "{}/absent/x.toml"], "a folder that exists"),
        ({"WORLD_SIZE": "2"}, [], "without MASTER_ADDR and MASTER_PORT"),
        ({"RANK": "first"}, [], "RANK=first"),
        ({"LOCAL_RANK": "7"}, ["--backend", "nccl"], "a GPU per rank"),
    ],
)
def test_what_cannot_be_detected_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], arguments: list[str], message: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = [word.format(tmp_path) for word in arguments]
    args = parser.parse_args(["detect", "--backend", "gloo", *given])
    with pytest.raises(ClusterError, match=message):
        args.run(args)


def run_command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_show_and_presets_print_trees_and_bandwidths() -> None:
    tree = run_command("show", "dgx-h100:4", "--sources")
    for part in ("dgx-h100:4: 32 devices", "8 x 50 GB/s each way", "450 GB/s", "8 x H100-SXM-80GB", "nccl src/graph"):
        assert part in tree
    listed = run_command("presets")
    assert "gb200-nvl72" in listed
    memory = format_bytes(load_cluster("local").devices[0].memory_bytes)
    assert memory in run_command("show", "local")
    assert memory in next(line for line in listed.splitlines() if "local" in line)
    assert "[level.pod]" in run_command("show", "dgx-h100:4", "--toml")
