"""Device types of a detected job, from what its ranks say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from meshwright.cluster.detect.probe import RankInfo
from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.device_table import GPUS

_CPU_RESERVE_BYTES = 1 << 29
_CUDA_RESERVE_BYTES = 3 << 29


def device_types(ranks: Sequence[RankInfo]) -> tuple[tuple[Device, ...], list[str], list[tuple[str, str]]]:
    """Types, the type of every rank, and sources. Ranks with the same device name and memory are one type."""
    kinds: dict[tuple[str, int], list[RankInfo]] = {}
    for info in ranks:
        kinds.setdefault((info.device, info.memory_bytes), []).append(info)
    repeated = len({name for name, _ in kinds}) < len(kinds)
    names = {key: f"{key[0]}-{key[1] / 2**30:.3g}GiB" if repeated else key[0] for key in kinds}
    devices = tuple(_device(names[key], likes) for key, likes in kinds.items())
    sources = [(f"{names[key]}.peaks", _source(likes)) for key, likes in kinds.items()]
    return devices, [names[info.device, info.memory_bytes] for info in ranks], sources


def known_name(device: str) -> str | None:
    """The name of the preset device that torch calls so."""
    found = _alike(words := _words(device))
    sized = [name for name in found if any(word in _words(name) for word in words if word.endswith("GB"))]
    return next(iter(sized or found), None)


def _known(info: RankInfo) -> Device | None:
    """The preset device that this one's name contains: `NVIDIA H100 80GB HBM3` is an H100. Of several that differ in
    memory, the one with the nearest."""
    found = [GPUS[name].device for name in _alike(_words(info.device))]
    return min(found, key=lambda device: abs(device.memory_bytes - info.memory_bytes), default=None)


def _alike(words: list[str]) -> list[str]:
    """Preset devices whose names these words contain, of the same form: those that most words tell, as `H100 NVL`."""
    found = [name for name in GPUS if all(word in words for word in _family(name)) and _same_form(words, _words(name))]
    most = max((len(_family(name)) for name in found), default=0)
    return [name for name in found if len(_family(name)) == most]


def _same_form(words: list[str], known: list[str]) -> bool:
    """On PCIe or not: a device that is sold in one form does not have it in its name."""
    if "PCIE" in words:
        return not any(word.startswith("SXM") for word in known)
    return "PCIE" not in known


def _family(name: str) -> list[str]:
    """`RTX-4090` and `A100-SXM-80GB` are an RTX 4090 and an A100: neither form nor memory tells."""
    return [word for word in _words(name) if not word.startswith(("SXM", "PCIE", "SERVER")) and not word.endswith("GB")]


def _words(name: str) -> list[str]:
    return name.replace("-", " ").upper().split()


def _source(likes: list[RankInfo]) -> str:
    if _known(likes[0]):
        return f"nominal for {likes[0].device}; achievable fractions measured on {len(likes)} ranks"
    return f"measured: matmul, the median of {len(likes)} ranks"


def _device(name: str, likes: list[RankInfo]) -> Device:
    """Median figures of ranks alike; a GPU that the presets know keeps its nominal rates, with what was reached."""
    known = _known(likes[0])
    flops = {dtype: median_low(dict(info.matmul_flops)[dtype] for info in likes) for dtype, _ in likes[0].matmul_flops}
    copy_rate = median_low(info.memory_bandwidth for info in likes)
    cuda = likes[0].kind == "cuda"
    # Training multiplies in bfloat16 where it can, so that is what the fraction is taken from.
    dtype = "bfloat16" if cuda and "bfloat16" in flops else "float32"
    reached = flops[dtype] / known.peak_flops(dtype) if known else 1.0
    return Device(
        name,
        likes[0].kind,
        known.peaks if known else tuple(flops.items()),
        likes[0].memory_bytes,
        known.memory_bandwidth if known else copy_rate,
        median_low(info.launch_s for info in likes),
        min(_CUDA_RESERVE_BYTES if cuda else _CPU_RESERVE_BYTES, likes[0].memory_bytes // 4),
        (
            Achievable("matmul", min(1.0, reached)),
            Achievable("memory", min(1.0, copy_rate / known.memory_bandwidth) if known else 1.0),
        ),
    )
