"""Hosts that differ: each stage and each replica is priced on its own devices and links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.cluster import Cluster, Link, load_cluster
from meshwright.cluster.tree import Group, Member
from meshwright.configuration import Configuration, Transformer, predict_configuration
from meshwright.configuration.framework import Framework
from meshwright.configuration.replicas import predicted, steps_of, tightest

MODEL = Transformer(layers=8, hidden=1024, heads=16, ffn=4096, vocab=32000, seq=1024)
LAYOUTS = (
    Configuration(dp=2, tp=4, micro_batch=2, global_batch=16),
    Configuration(dp=1, tp=4, pp=2, micro_batch=2, global_batch=16),
    Configuration(dp=2, tp=2, pp=2, micro_batch=1, global_batch=16, zero=1),
)
NETWORK = Link(2e-5, 1e10)


def _hosts(*names: str, uplinks: dict[str, Link] | None = None) -> Cluster:
    """Hosts of four: `h100`, or `other` for an H100 by another name, or `slow` for one of a third of its rates."""
    one = load_cluster("h100:4")
    h100 = one.devices[0]
    slow = replace(
        h100,
        name="slow",
        peaks=tuple((dtype, rate / 3) for dtype, rate in h100.peaks),
        memory_bandwidth=h100.memory_bandwidth / 3,
        memory_bytes=h100.memory_bytes // 3,
    )
    known = {"h100": replace(h100, name="h100"), "other": replace(h100, name="other"), "slow": slow}
    hosts = tuple(
        Member(Group("host", one.root.link, (Member(name, 4),)), 1, (uplinks or {}).get(name)) for name in names
    )
    return Cluster("mine", "nccl", tuple(known[name] for name in dict.fromkeys(names)), Group("pod", NETWORK, hosts))


@pytest.mark.parametrize("given", LAYOUTS)
def test_devices_that_differ_by_name_alone_are_priced_as_one_type(given: Configuration) -> None:
    assert predict_configuration(MODEL, given, _hosts("h100", "other")) == predict_configuration(
        MODEL, given, _hosts("h100", "h100")
    )


@pytest.mark.parametrize("given", LAYOUTS)
def test_a_step_is_that_of_the_slowest_host_wherever_it_is(given: Configuration) -> None:
    fast, slow = (predict_configuration(MODEL, given, _hosts(name, name)).step_s for name in ("h100", "slow"))
    first, last = (
        predict_configuration(MODEL, given, _hosts(*names)).step_s for names in (("slow", "h100"), ("h100", "slow"))
    )
    assert fast < min(first, last)
    assert max(first, last) <= slow * (1 + 1e-9)
    if given.pp == 1:  # replicas wait for each other
        assert first == last == pytest.approx(slow)
    else:  # the last stage has the head too
        assert first < last


def test_a_replica_waits_for_one_whose_stages_hand_over_slowly() -> None:
    given = Configuration(dp=2, tp=4, pp=2, micro_batch=1, global_batch=32)
    hosts = ("h100", "other", "h100", "other")  # of each stage, those of both replicas
    steps = steps_of(MODEL, given, _hosts(*hosts, uplinks={"other": Link(2e-5, 1e8)}))
    wide, narrow = (step.predict().step_s for step in steps)
    assert wide < narrow == predicted(steps).step_s
    assert len(steps_of(MODEL, given, _hosts(*hosts, uplinks={"other": NETWORK}))) == 2
    assert len(steps_of(MODEL, given, _hosts(*["h100"] * 4))) == 1


def test_memory_is_that_of_the_device_it_fills_most() -> None:
    steps = steps_of(MODEL, LAYOUTS[0], _hosts("h100", "slow"))
    device, held = tightest(steps)
    assert device.name == "slow"
    assert held == max(peak for step in steps for _, peak in step.held)


def test_stages_that_hand_over_in_turn_wait_for_both_messages() -> None:
    """With nothing else to wait for, a micro-batch takes two messages longer than its stage computes."""
    given = Configuration(pp=2, tp=4, micro_batch=2, global_batch=256, stage_layers=(1, 7))
    cluster = _hosts("h100", "h100", uplinks={"h100": Link(0.0, 4e7)})
    beside, in_turn = (
        predict_configuration(MODEL, replace(given, in_turn=turn, sp=True), cluster).step_s for turn in (False, True)
    )
    message_s = 2 * 1024 * 1024 * 2 / 4e7  # all ranks of a host share its link
    assert in_turn > 2 * message_s * given.microbatches > beside


def test_a_stage_that_reads_what_arrives_is_never_ahead_and_fills_a_tensor_for_it() -> None:
    """In turn, what the host needs beyond the device's forward is not made up for by backward."""
    given = Configuration(pp=2, tp=4, micro_batch=8, global_batch=512, stage_layers=(4, 4))
    cluster = _hosts("h100", "h100")

    def step_s(turn: bool, **figures: float) -> float:
        return predict_configuration(MODEL, replace(given, in_turn=turn), cluster, Framework("", **figures)).step_s

    waits = [step_s(turn, op_host_s=3.8e-5) / step_s(turn, op_host_s=1e-9) for turn in (False, True)]
    assert waits[0] == pytest.approx(1.0)
    assert waits[1] > 1.02
    arrived_bytes = given.micro_batch * MODEL.seq * MODEL.hidden * 2
    filled_s = step_s(True, filled_s=1e-9) - step_s(True)
    assert filled_s == pytest.approx(1e-9 * arrived_bytes * (given.microbatches + 1), rel=0.01)


def test_price_of_a_file_with_two_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.cli import main

    file = tmp_path / "mixed.toml"
    file.write_text(
        'name = "mixed"\nbackend = "nccl"\n'
        '[device.3090]\nmemory = "24GiB"\nmemory_bandwidth = "936GB/s"\npeaks = { bfloat16 = "71T" }\n'
        '[device.2080ti]\nmemory = "11GiB"\nmemory_bandwidth = "616GB/s"\npeaks = { float16 = "54T", float32 = "9T" }\n'
        '[level.host]\nbandwidth = "16GB/s"\n[level.pod]\nbandwidth = "3GB/s"\n'
        '[[host]]\ndevice = "3090"\ndevices = 4\n[[host]]\ndevice = "2080ti"\ndevices = 4\n',
        encoding="utf-8",
    )
    pins = ["--pin", "tp=4", "--pin", "pp=2", "--pin", "precision=fp16", "--global-batch", "8"]
    assert main(["price", "gpt?layers=8&hidden=1024&heads=16&vocab=32000&seq=1024", "--cluster", str(file), *pins]) == 0
    assert "(2080ti)" in capsys.readouterr().out
