"""How long this host takes to ask its device for a kernel: hosts of one kind of GPU differ by a factor of two."""

from __future__ import annotations

import time

import torch

from meshwright.caches import CACHES

_CALLS, _ROUNDS = 200, 9


@CACHES.memoized(maxsize=8)
def launch_s(device: torch.device) -> float:
    """Seconds of one launch, as profiles have them (`Device.launch_s`)."""
    return measured_s(device)


def measured_s(device: torch.device) -> float:
    """The second quickest of a few rounds, two digits of it, so that plans made on one machine are alike."""
    one = torch.ones(1, device=device)
    rounds = sorted(_round_s(one) for _ in range(_ROUNDS))
    return float(f"{rounds[1] / _CALLS:.2g}")


def _round_s(one: torch.Tensor) -> float:
    _synchronize(one.device)
    before = time.perf_counter()
    for _ in range(_CALLS):
        one + 1
    found = time.perf_counter() - before
    _synchronize(one.device)
    return found


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
