"""Which device a table means by its name of a GPU: `H100-80GB`, `NVIDIA A100-SXM4-80GB`, `gb200_sxm`."""

from __future__ import annotations

import re

from meshwright.cluster.device_table import GPUS
from meshwright.cluster.hosts import ALIASES

NO_PART = re.compile(
    r"nvidia|geforce|tesla|amd|instinct|sxm\d?|hbm\d?e?|server|edition|generation|gi?b|dgx|hgx|nvl(8|36|72)"
)
"""Words of a name that tell no two devices apart: an `nvl` alone is a card of its own, of 8 or more a rack."""
MEMORY = re.compile(r"(\d{2,3})(g|gb|gib)?")
"""`80GB`, `80G` or `80`."""
OTHER_NAMES = {
    "rtx-2080": "2080ti", "rtx-pro-6000-blackwell": "rtx-pro-6000", "rtx6000-ada": "rtx-6000-ada",
    "6000-ada": "rtx-6000-ada", "quadro-rtx-a6000": "a6000", "rtxa6000": "a6000",
}  # fmt: skip
"""Sailor's RTX 2080 have 11 GB, which the RTX 2080 Ti has."""
READINGS = (1e9, 2.0**30)
NEAR = 0.08


def device_name(gpu: str) -> str | None:
    """The short name of a device, as in `h100:8`; None of one that is not known, in this size of memory."""
    plain, sizes = _parts(gpu)
    known = {_parts(device)[0]: alias for alias, device in reversed(ALIASES.items())} | OTHER_NAMES
    for name in (*(f"{plain}-{size}gb" for size in sizes), plain, plain.removesuffix("-pcie")):
        alias = name if name in ALIASES else known.get(name)
        if alias and _same_form(gpu, ALIASES[alias]) and all(_has(ALIASES[alias], size) for size in sizes):
            return alias
    return None


def _parts(gpu: str) -> tuple[str, list[int]]:
    """What is left of a name, and the sizes of memory in it."""
    words = [word for word in re.split(r"[\s_-]+", gpu.lower()) if word and not NO_PART.fullmatch(word)]
    sizes = [int(found[1]) for found in map(MEMORY.fullmatch, words[1:]) if found]
    return "-".join(word for word in words if word == words[0] or not MEMORY.fullmatch(word)), sizes


def _same_form(gpu: str, device: str) -> bool:
    """Whether a name says SXM of no card for PCIe, nor PCIe of a module."""
    given, known = gpu.lower(), device.lower()
    return not (("sxm" in given and "pcie" in known) or ("pcie" in given and "sxm" in known))


def _has(device: str, size: int) -> bool:
    """Whether so many GB may be its memory: vendors count them either way."""
    memory = GPUS[device].device.memory_bytes
    return any(abs(size * unit / memory - 1.0) < NEAR for unit in READINGS)
