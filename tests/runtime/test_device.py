"""Where a rank computes, and what it does to the allocator there."""

from __future__ import annotations

import pytest
import torch

from meshwright.runtime import device as module


def test_on_a_gpu_segments_are_expandable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it where ranks compute on CPUs."""
    asked: list[bool] = []
    monkeypatch.setattr(module, "expandable_segments", lambda: asked.append(True))
    assert module.own_device("cpu").type == "cpu"
    assert not asked
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert module.own_device("cuda") == torch.device("cuda", 0)
    assert asked
