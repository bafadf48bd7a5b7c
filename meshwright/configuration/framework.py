"""What a training framework adds to the prices of its kernels: at most three figures, fitted to published steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framework:
    """op_host_s: host seconds of asking for one op, by its own figures if 0. stall: which share of that a host loses
    besides where stages hand over between hosts; ranks of tensor parallelism wait for each other's, so that theirs add
    up. kernels: how much longer kernels take than those of the device's tables. filled_s: host seconds for each byte
    that a stage takes over, where it fills a tensor for it in the host's memory."""

    name: str
    op_host_s: float = 0.0
    stall: float = 0.0
    kernels: float = 1.0
    filled_s: float = 0.0


PLAIN = Framework("meshwright")
"""Our own plans: nothing is added."""
