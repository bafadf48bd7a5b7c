"""How much compute slows while a collective runs at the same time.

NCCL's kernels take multiprocessors and memory bandwidth from the products. Measured by Mist (Dazz993/Mist@d69e530,
`mist/tools/results-final`): products of 7 to 35 ms alone, all-gathers of 3 to 32 ms alone, and both at once. Where the
products take longer, what both take beyond them, over the seconds of the all-gather alone (medians):

| | 2, 4, 8 ranks of a host | hosts with 1, 2, 4, 8 ranks each |
|---|---|---|
| A100-SXM-40GB | 0.55, 0.49, 0.47 | 2 hosts: 0.15, 0.09, 0.08, 0.05; 4 hosts: 0.07, 0.07, 0.07, 0.06 |
| V100-SXM2-16GB | 0.21, 0.19, 0.55 | 2 hosts: -, 0.12, 0.07, 0.08; 4 hosts: -, 0.06, 0.05, 0.06 |

A copy between an A100 and its host costs 0.01. A group of 8 L4 over PCIe costs 0.08 (`backup/results-backup-0430`).
Other devices are taken to be alike.
"""

from __future__ import annotations

from meshwright.cluster.mesh import Axis

NVLINK_BANDWIDTH = 100e9
"""Bytes per second from which a link inside a host is no PCIe."""
OVER_NVLINK, OVER_OTHERS = 0.49, 0.07


def compute_slowdown(axis: Axis) -> float:
    """Seconds that compute takes longer for each second of a collective over this axis that runs at the same time."""
    fast = all(hop.bandwidth > NVLINK_BANDWIDTH for hops in axis.kinds for hop in hops)
    return OVER_NVLINK if fast else OVER_OTHERS
