"""How much longer products take in the midst of a step than alone.

A GPU lowers its clocks as it draws more power, the further the more of its time goes to products. A figure of its own
is measured in a few milliseconds, at full clocks; a training step goes on for hours.
"""

from __future__ import annotations

import torch

from meshwright.cluster.calibrate.clock import CudaClock
from meshwright.cluster.calibrate.grids import Rates, factors

SHARES = (1.0, 0.8, 0.6, 0.4)
"""Of the time that goes to products; copies fill the rest. The hottest first."""
_WHILE_S = 0.8
"""How long each is looked at; the second half counts."""
_ROUND_S = 6e-3
"""Of products in a row."""


def steady(rates: Rates, dtype: torch.dtype, size: int, copy_bytes: int) -> list[list[float]]:
    """Rows of a share and what products then take over what they take alone."""
    product = factors(rates, "nn", dtype, size, size, size)
    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=rates.device)
    target = torch.empty_like(source)
    product_s = rates.clock.device_s(product)
    copy_s = rates.clock.device_s(lambda: target.copy_(source))
    products = max(1, round(_ROUND_S / product_s))
    found = []
    for share in SHARES:
        copies = round(products * product_s * (1 / share - 1) / copy_s)
        rounds = max(4, round(_WHILE_S * share / (products * product_s)))
        marks = []
        for _ in range(rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(products):
                product()
            end.record()
            for _ in range(copies):
                target.copy_(source)
            marks.append((start, end))
        assert isinstance(rates.clock, CudaClock)
        rates.clock.settle()
        late = [start.elapsed_time(end) * 1e-3 for start, end in marks[rounds // 2 :]]
        found.append([share, sum(late) / (len(late) * products * product_s)])
    return found[::-1]
