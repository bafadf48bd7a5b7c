"""How much longer products, and what moves memory, take in the midst of a step than alone.

A GPU lowers its clocks as it draws more power, the further the more of its time goes to products. A figure of its own
is measured in a few milliseconds, at full clocks; a training step goes on for hours.
"""

from __future__ import annotations

import torch

from meshwright.cluster.calibrate.grids import Rates, factors

SHARES = (1.0, 0.8, 0.6, 0.4)
"""Of the time that goes to products; copies fill the rest. The hottest first."""
_WHILE_S = 0.8
"""How long each is looked at; the second half counts."""
_ROUND_S = 6e-3
"""Of products in a row."""


def steady(rates: Rates, dtype: torch.dtype, size: int, copy_bytes: int) -> list[list[float]]:
    """Rows of a share and what products then take over what they take alone, and what copies do."""
    product = factors(rates, "nn", dtype, size, size, size)
    source = torch.randint(256, (copy_bytes,), dtype=torch.uint8, device=rates.device)  # zeros draw less power
    target = torch.empty_like(source)
    product_s = rates.clock.device_s(product)
    copy_s = rates.clock.device_s(lambda: target.copy_(source))
    products = max(1, round(_ROUND_S / product_s))
    found: list[list[float]] = []
    for share in SHARES:
        copies = max(1, round(products * product_s * (1 / share - 1) / copy_s))
        marks = []
        for _ in range(max(4, round(_WHILE_S * share / (products * product_s)))):
            marks.append([torch.cuda.Event(enable_timing=True) for _ in range(3)])  # type: ignore[no-untyped-call]
            marks[-1][0].record()
            for _ in range(products):
                product()
            marks[-1][1].record()
            for _ in range(copies):
                target.copy_(source)
            marks[-1][2].record()
        rates.clock.synchronize()
        late = marks[len(marks) // 2 :]
        took_s = [sum(mark[i].elapsed_time(mark[i + 1]) for mark in late) * 1e-3 / len(late) for i in (0, 1)]
        found.append([share, took_s[0] / (products * product_s), took_s[1] / (copies * copy_s)])
    return found[::-1]
