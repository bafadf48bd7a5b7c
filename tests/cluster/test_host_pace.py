"""The pace of this host scales what its launches cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.cluster import device_table, launch
from meshwright.cluster.profile_load import profile_of


def test_a_launch_is_the_second_quickest_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([9.0, 2.0, 1.2345e-3 * launch._CALLS, 1e-9, *[8.0] * launch._ROUNDS])
    monkeypatch.setattr(launch, "_round_s", lambda one: next(rounds))
    assert launch.measured_s(torch.device("cpu")) == pytest.approx(1.2e-3)


def test_a_slower_host_asks_for_every_op_as_much_later() -> None:
    known = device_table.GPUS["H200-SXM-141GB"].device
    usual, slow = (
        profile_of(device).host("linear", "bfloat16") for device in (known, replace(known, launch_s=2 * known.launch_s))
    )
    assert slow == pytest.approx([2 * seconds for seconds in usual])
