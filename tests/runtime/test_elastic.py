"""Hosts that come and go under torchrun: what is told to it, and which store ranks meet at."""

from __future__ import annotations

import socket

import pytest

from meshwright.cluster.detect import lead
from meshwright.cluster.detect.lead import meet, restart_count
from meshwright.runtime.job.elastic import _elastic


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["torchrun", "--nnodes=1:2", "-m", "meshwright"], True),
        (["torchrun", "--nnodes", "1:4"], True),
        (["torchrun", "--nnodes", "2:2"], False),
        (["torchrun", "--nnodes=2"], False),
        (["torchrun", "--standalone", "train.py", "--name=1:2"], False),
    ],
)
def test_a_number_of_hosts_that_may_change(words: list[str], wanted: bool) -> None:
    assert _elastic(words) is wanted


@pytest.mark.parametrize(("kept", "counted"), [("True", "3"), ("False", "0")])
def test_hosts_that_join_later_meet_those_that_were_restarted(
    kept: str, counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have counted fewer restarts; where the store is new with every start the count says nothing."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", kept)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert restart_count() == counted


def test_rank_0_keeps_the_store_from_detection_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    meet(0, 1, 10.0)
    try:
        socket.create_connection(("127.0.0.1", port), 5.0).close()  # though nobody holds what meet gave
    finally:
        del lead._KEPT["127.0.0.1", port]
