"""The shaped network: it cleans up after failures and time limits, and detection finds the truth that was set."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "shaped"))
from detect import SCENARIOS, judge
from network import Host, shaped_network, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"not run, so not passed: {why_not()}")
PAIR = [Host("a", "50mbit"), Host("b", "50mbit")]


def left_of(prefix: str) -> list[str]:
    """Namespaces that a network of this prefix still has."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(prefix)]


def test_ranks_know_their_host_and_reach_each_other() -> None:
    with shaped_network(PAIR) as network:
        script = 'echo "$RANK of $WORLD_SIZE on $(hostname)"; ping -c 1 -W 2 "$MASTER_ADDR" > /dev/null || exit 3'
        has_ping = subprocess.run(["which", "ping"], capture_output=True, check=False).returncode == 0
        printed = network.run(["sh", "-c", script if has_ping else script.split(";")[0]], [1, 2], timeout_s=20)
        prefix = network.prefix
    assert printed == ["0 of 3 on a\n", "1 of 3 on b\n", "2 of 3 on b\n"]
    assert not left_of(prefix)


def test_a_failing_rank_ends_the_others() -> None:
    start = time.monotonic()
    with shaped_network(PAIR) as network, pytest.raises(RuntimeError, match="rank 1 failed"):
        network.run(["sh", "-c", '[ "$RANK" = 0 ] && exec sleep 60; exit 5'], [1, 1], timeout_s=50)
    assert time.monotonic() - start < 30
    assert not left_of(network.prefix)


def test_time_is_bounded() -> None:
    with shaped_network(PAIR) as network, pytest.raises(RuntimeError, match="no end after 1 s"):
        network.run(["sleep", "60"], [1, 1], timeout_s=1)


def test_a_failure_inside_leaves_nothing_behind() -> None:
    networks = []

    def fail_inside() -> None:
        with shaped_network(PAIR) as network:
            networks.append(network)
            assert left_of(network.prefix)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail_inside()
    assert not left_of(networks[0].prefix)


@pytest.mark.full
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_detection_finds_what_was_set(scenario: object) -> None:
    result = judge(scenario, timeout_s=240)  # type: ignore[arg-type]
    assert result["structure"]
    assert result["passed"], result
