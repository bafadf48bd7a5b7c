"""Read a `[device.NAME]` table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.cluster.device import DEVICE_KINDS, Achievable, Device
from meshwright.cluster.profile_load import device_of
from meshwright.cluster.toml.nearest import Nearest
from meshwright.cluster.toml.table import Plausible, Table
from meshwright.cluster.units import format_bytes, parse_bytes, parse_count, parse_rate, parse_seconds
from meshwright.errors import ClusterError

DEVICE_FIELDS = ("kind", "memory", "reserve", "memory_bandwidth", "launch", "peaks", "achievable", "profile")
_DTYPES = ("float4", "float8", "bfloat16", "float16", "tf32", "float32", "float64")
_ANCHORS = ("bfloat16", "float16", "tf32", "float32", "float8", "float4")
"""Dtypes by whose rate others are scaled, the first that both devices have."""
_RATE = Plausible("1G", "100P", ("T",))
SLOWEST_HALF = 100.0
"""Times float32's rate over that of half precision: no device is slower in it than a 64th."""
_MEMORY = Plausible("16MiB", "4TiB", ("GiB",))
_BANDWIDTH = Plausible("2GB/s", "100TB/s", ("TB/s", "GB/s"))
_LAUNCH = Plausible("0s", "1s", ("us",))
_FIGURES = {
    "memory": "memory_bytes",
    "reserve": "reserve_bytes",
    "launch": "launch_s",
    "memory_bandwidth": "memory_bandwidth",
    "achievable": "achievable",
    "profile": "profile",
}
"""Fields of the file, and the figures of a Device that they are."""
_OP_KINDS = (*("matmul", "attention", "convolution", "memory", "sustained", "sustained_float8", "sustained_attention"),)


def read_device(name: str, table: Table, nearest: Nearest) -> Device:
    """A device's figures; those that are not given are its profile's, or those of the nearest known device."""
    known = _profiled(table) or _nearest(name, table, nearest)
    peaks = known.peaks if known and "peaks" not in table else _filled(name, table, known, nearest)
    for field, figure in _FIGURES.items():
        if field in table:
            nearest.given(f"{name}.{figure}")
    memory_bytes = int(_memory(table, known.memory_bytes if known else None))
    reserve_bytes = int(table.figure("reserve", parse_bytes, known.reserve_bytes if known else 0.0))
    if reserve_bytes >= memory_bytes:
        given = repr(table.data["reserve"]) if "reserve" in table else f"{reserve_bytes:,} bytes, as of {_like(known)},"
        raise table.where.error(table.field("reserve"), f"is {given}", f"less than `memory`, {memory_bytes:,} bytes")
    return Device(
        name=name,
        kind=table.one_of("kind", DEVICE_KINDS, known.kind if known else "cuda"),
        peaks=peaks,
        memory_bytes=memory_bytes,
        memory_bandwidth=_bandwidth(table, known.memory_bandwidth if known else None),
        launch_s=table.figure("launch", parse_seconds, known.launch_s if known else 0.0, plausible=_LAUNCH),
        reserve_bytes=reserve_bytes,
        achievable=known.achievable if known and "achievable" not in table else _achievable(table),
        profile=known.profile if known else "",
    )


def _memory(table: Table, default: float | None = None) -> float:
    return table.figure("memory", parse_bytes, default, positive=True, plausible=_MEMORY)


def _bandwidth(table: Table, default: float | None = None) -> float:
    return table.figure("memory_bandwidth", parse_rate, default, positive=True, plausible=_BANDWIDTH)


def _filled(name: str, table: Table, known: Device | None, nearest: Nearest) -> tuple[tuple[str, float], ...]:
    """The peaks that are given; those of other dtypes as `known` has them in proportion."""
    peaks = dict(_peaks(table))
    theirs = dict(known.peaks) if known else {}
    shared = [dtype for dtype in _ANCHORS if dtype in peaks and dtype in theirs]
    for dtype in peaks:
        nearest.given(f"{name}.peaks.{dtype}")
    if known and shared:
        for dtype in [dtype for dtype in theirs if dtype not in peaks]:
            ratio = theirs[dtype] / theirs[shared[0]]
            peaks[dtype] = peaks[shared[0]] * ratio
            nearest.note_device(name, f"peaks.{dtype}", f"{ratio:.3g} of {shared[0]}", known)
    if "float32" not in peaks:
        raise table.where.error(
            table.field("peaks.float32"), "is missing", "the rate of float32, in which sums are kept", "add it"
        )
    return tuple(peaks.items())


def _like(known: Device | None) -> str:
    return known.name if known else "others"


def _nearest(name: str, table: Table, nearest: Nearest) -> Device | None:
    """The known device nearest to the rates that are given, of which the figures are taken that are not."""
    kind = table.one_of("kind", DEVICE_KINDS, "cuda")
    if "profile" in table or kind != "cuda" or not nearest.use:
        return None
    peaks = dict(_peaks(table))
    found = nearest.device(name, peaks, _memory(table), _bandwidth(table))
    for field, figure in _FIGURES.items():
        if field not in table:
            nearest.note_device(name, figure, _shown(figure, getattr(found, figure)), found)
    return found


def _shown(figure: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{each.kind} {each.fraction:g}" for each in value)
    if figure.endswith("_bytes"):
        return format_bytes(value)
    return f"{value * 1e6:.3g} us" if figure == "launch_s" else f"{value}"


def _profiled(table: Table) -> Device | None:
    """The device of the profile that is named: a shipped one, or a file (next to this one, if its path is relative)."""
    name = table.text("profile", "")
    if not name:
        return None
    if name.endswith(".json"):
        folder = Path(table.where.file).parent
        if "\0" in name or not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise table.where.error(
                table.field("profile"), f"is {name!r}", "a file in the folder of this one, or below"
            )
        name = str((folder / name).absolute())
    try:
        return device_of(name)
    except ClusterError as error:
        raise table.where.error(table.field("profile"), f"is {name!r}: {error.given}", error.expected) from error


def _peaks(table: Table) -> tuple[tuple[str, float], ...]:
    peaks = table.child("peaks", _DTYPES)
    found = {dtype: peaks.figure(dtype, parse_count, positive=True, plausible=_RATE) for dtype in table.keys("peaks")}
    for dtype in ("bfloat16", "float16"):
        if dtype in found and found[dtype] < found.get("float32", 0.0) / SLOWEST_HALF:
            raise table.where.error(
                peaks.field(dtype),
                f"is {found[dtype]:g}, less than a hundredth of float32's {found['float32']:g}",
                'figures of one device, such as "155T"',
                "check its unit",
            )
    return tuple(found.items())


def _achievable(table: Table) -> tuple[Achievable, ...]:
    if "achievable" not in table:
        return ()
    entries, found = table.child("achievable", _OP_KINDS), []
    for kind, value in entries.data.items():
        if isinstance(value, Mapping):
            entry = entries.child(kind, ("fraction", "half_work"))
            half = entry.figure("half_work", parse_count, 0.0)
            found.append(Achievable(kind, entry.figure("fraction", parse_count, positive=True), half))
        else:
            found.append(Achievable(kind, entries.figure(kind, parse_count, positive=True)))
        if found[-1].fraction > 1:
            raise table.where.error(entries.field(kind), f"is {found[-1].fraction}", "a fraction of at most 1")
    return tuple(found)
