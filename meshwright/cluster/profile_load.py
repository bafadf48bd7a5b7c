"""Profiles as files: those that meshwright ships, and those that `meshwright calibrate` writes.

A file either has tables (it was measured) or names one that has (`like`), with figures of its own. docs/calibrate.md
has every field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.caches import CACHES
from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.device_profile import WEIGHTS, DeviceProfile, window_place
from meshwright.cluster.profile_tables import Curve, Grid, OptimizerCost, Tables
from meshwright.cluster.scatter import Scatter
from meshwright.errors import ClusterError

SCHEMA = 2
SHIPPED = Path(__file__).parent / "profiles"
REFERENCE = {"cuda": "H200-SXM-141GB", "cpu": "cpu"}
"""Whose tables serve devices of a kind that have none of their own."""

_FIGURES = ("memory_bytes", "reserve_bytes", "memory_bandwidth", "launch_s")
_TABLES = ("kernels", "grids", "scatters", "factors", "host", "optimizers")
_KNOWN = (
    *("schema", "name", "kind", "like", "peaks", "achievable", "reached", "host_link", "measured", "sources"),
    *("pairs", "units"),
)


def shipped() -> list[str]:
    """Names of the profiles that come with meshwright."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def profile_path(name: str) -> Path:
    """The file of a profile: a shipped one by its name, any other by its path."""
    if not name.endswith(".json"):
        path = SHIPPED / f"{name}.json"
        if not path.exists():
            raise ClusterError(f"device profile {name!r}", f"one of {', '.join(shipped())}, or a path ending in .json")
        return path
    return Path(name)


@CACHES.memoized()
def read_profile(name: str) -> dict[str, Any]:
    """A profile's JSON, checked."""
    path = profile_path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(
            f"device profile {name}: {error.strerror}", "a file written by `meshwright calibrate`", "check the path"
        ) from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClusterError(f"device profile {name} is not JSON: {error}", "a file of `meshwright calibrate`") from error
    check_profile(data, name)
    found: dict[str, Any] = data
    return found


def check_profile(data: Any, name: str) -> None:
    """Raises ClusterError, with the field, unless pricing can work with this."""
    _Check(name).profile(data)


class _Check:
    def __init__(self, name: str) -> None:
        self.name = name

    def fail(self, field: str, given: Any, expected: str) -> ClusterError:
        text = repr(given)
        shown = text if len(text) < 60 else text[:57] + "..."
        return ClusterError(
            f"device profile {self.name}: {field} is {shown}", expected, "undo the edit, or calibrate again"
        )

    def profile(self, data: Any) -> None:
        self.table("the file", data)
        if data.get("schema") != SCHEMA:
            raise self.fail("schema", data.get("schema"), f"{SCHEMA}, the one this version reads")
        for key in data:
            if key not in (*_KNOWN, *_FIGURES, *_TABLES):
                raise self.fail(key, data[key], f"one of {', '.join((*_KNOWN, *_FIGURES, *_TABLES))}")
        for key in ("name", "kind"):
            if not isinstance(data.get(key), str):
                raise self.fail(key, data.get(key), "text")
        for key in _FIGURES:
            self.positive(key, data.get(key), zero=key in ("reserve_bytes", "launch_s"))
        self.rates("peaks", data.get("peaks"))
        if not data["peaks"]:
            raise self.fail("peaks", data["peaks"], "at least float32")
        if "like" in data:
            if not isinstance(data["like"], str):
                raise self.fail("like", data["like"], "the name of a profile with tables")
        else:
            self.tables(data)

    def tables(self, data: Mapping[str, Any]) -> None:
        for key in (*_TABLES, "reached"):
            self.table(key, data.get(key))
        for name, curves in data["kernels"].items():
            for dtype, rows in self.table(f"kernels.{name}", curves).items():
                self.points(f"kernels.{name}.{dtype}", rows)
        for name, grids in data["grids"].items():
            for dtype, grid in self.table(f"grids.{name}", grids).items():
                self.grid(f"grids.{name}.{dtype}", grid)
        for name, by in data["scatters"].items():
            for dtype, scatter in self.table(f"scatters.{name}", by).items():
                self.scatter(f"scatters.{name}.{dtype}", scatter, _SIZES.get(name) or len(weights_of(name)))
        for part in ("host", "pairs"):
            for dtype, ops in self.table(part, data.get(part, {})).items():
                if "eager" not in self.table(f"{part}.{dtype}", ops):
                    raise self.fail(f"{part}.{dtype}.eager", None, "4 numbers")
                for name, numbers in ops.items():
                    self.numbers(f"{part}.{dtype}.{name}", numbers, 4 if name == "eager" else 2)
        for name, cost in data["optimizers"].items():
            for key in ("fixed_s", "tensor_s", "tensor_device_s"):
                self.positive(f"optimizers.{name}.{key}", self.table(f"optimizers.{name}", cost).get(key), zero=True)
            for key in ("gradient_s", "byte_s"):
                self.positive(f"optimizers.{name}.{key}", cost.get(key, 0.0), zero=True)
            for dtype, rows in self.table(f"optimizers.{name}.curves", cost.get("curves")).items():
                self.points(f"optimizers.{name}.curves.{dtype}", rows)

    def table(self, field: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(field, value, "a table")
        return value

    def rates(self, field: str, value: Any) -> None:
        for key, rate in self.table(field, value).items():
            self.positive(f"{field}.{key}", rate)

    def positive(self, field: str, value: Any, zero: bool = False) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not (value > 0 or (zero and value == 0)):
            raise self.fail(field, value, "zero or more" if zero else "a positive figure")

    def numbers(self, field: str, value: Any, count: int, zero: bool = True) -> None:
        if not isinstance(value, list) or len(value) != count:
            raise self.fail(field, value, f"{count} numbers")
        for number in value:
            self.positive(field, number, zero=zero)

    def points(self, field: str, rows: Any) -> None:
        if not isinstance(rows, list) or not rows:
            raise self.fail(field, rows, "points of [bytes, seconds]")
        for row in rows:
            self.numbers(field, row, 2)
            for number in row:
                self.positive(field, number)

    def scatter(self, field: str, scatter: Any, sizes: int) -> None:
        points = self.table(field, scatter).get("points")
        if not isinstance(points, list) or not points:
            raise self.fail(f"{field}.points", points, f"points of {sizes} sizes")
        for point in points:
            self.numbers(f"{field}.points", point, sizes, zero=False)
        for side, ratios in self.table(f"{field}.ratios", scatter.get("ratios")).items():
            self.numbers(f"{field}.ratios.{side}", ratios, len(points), zero=False)
            if "doubts" in scatter:
                doubts = self.table(f"{field}.doubts", scatter["doubts"]).get(side)
                self.numbers(f"{field}.doubts.{side}", doubts, len(points), zero=False)

    def grid(self, field: str, grid: Any) -> None:
        cells = 1
        for axis, sizes in self.table(f"{field}.axes", self.table(field, grid).get("axes")).items():
            if not isinstance(sizes, list) or not sizes or sizes != sorted(set(sizes)):
                raise self.fail(f"{field}.axes.{axis}", sizes, "sizes in rising order")
            for size in sizes:
                self.positive(f"{field}.axes.{axis}", size)
            cells *= len(sizes)
        fractions = grid.get("fractions")
        if not isinstance(fractions, list) or len(fractions) != cells:
            raise self.fail(f"{field}.fractions", fractions, f"{cells} fractions, one for each point of the axes")
        for fraction in fractions:
            self.positive(f"{field}.fractions", fraction)


_SIZES = {"convolution.window": 6}
"""Of points that are kept as they were measured, where they are told apart by more than that."""


def scatter_of(name: str, dtype: str, data: Mapping[str, Any]) -> Scatter:
    points = data["points"]
    if name == "convolution.window":
        points = [window_place(2 if dtype == "bfloat16" else 4, *point) for point in points]
    return Scatter(points, data["ratios"], weights_of(name), data.get("doubts"))


def weights_of(name: str) -> tuple[float, ...]:
    """Of a scatter: attention's variants have the same sizes."""
    return WEIGHTS[name] if name in WEIGHTS else WEIGHTS[name.split(".")[0]]


@CACHES.memoized()
def tables(name: str) -> Tables:
    """The tables of a profile, its own or those of the one it is like."""
    data = read_profile(name)
    if "like" in data:
        if "like" in read_profile(data["like"]):
            raise ClusterError(f"device profile {name}: like is {data['like']!r}", "a profile with tables of its own")
        return tables(data["like"])
    return Tables(
        name=data["name"],
        kind=data["kind"],
        peaks=data["peaks"],
        memory_bandwidth=data["memory_bandwidth"],
        units=data.get("units", 1),
        launch_s=data["launch_s"],
        reached=data["reached"],
        kernels={
            kernel: {dtype: Curve([(x, y) for x, y in rows]) for dtype, rows in curves.items()}
            for kernel, curves in data["kernels"].items()
        },
        grids={
            grid: {
                dtype: Grid(tuple((a, tuple(s)) for a, s in one["axes"].items()), one["fractions"])
                for dtype, one in by.items()
            }
            for grid, by in data["grids"].items()
        },
        scatters={
            key: {dtype: scatter_of(key, dtype, one) for dtype, one in by.items()}
            for key, by in data["scatters"].items()
        },
        misaligned=data["factors"].get("misaligned", {}),
        grouped=data["factors"].get("grouped", {}),
        channels_last=data["factors"].get("channels_last", {}),
        steady=data["factors"].get("steady", {}),
        host={dtype: {op: tuple(each) for op, each in ops.items()} for dtype, ops in data["host"].items()},
        pairs={dtype: {op: tuple(each) for op, each in ops.items()} for dtype, ops in data.get("pairs", {}).items()},
        optimizers={
            key: OptimizerCost(
                cost["fixed_s"],
                cost["tensor_s"],
                cost["tensor_device_s"],
                {dtype: Curve([(x, y) for x, y in rows]) for dtype, rows in cost["curves"].items()},
                cost.get("gradient_s", 0.0),
                cost.get("byte_s", 0.0),
            )
            for key, cost in data["optimizers"].items()
        },
    )


@CACHES.memoized()
def device_of(name: str) -> Device:
    """The device that a profile describes."""
    data = read_profile(name)
    return Device(
        name=data["name"],
        kind=data["kind"],
        peaks=tuple(data["peaks"].items()),
        memory_bytes=int(data["memory_bytes"]),
        memory_bandwidth=float(data["memory_bandwidth"]),
        launch_s=float(data["launch_s"]),
        reserve_bytes=int(data["reserve_bytes"]),
        achievable=_achievable(data),
        profile=name,
    )


def _achievable(data: Mapping[str, Any]) -> tuple[Achievable, ...]:
    """Of the best product in the dtype that multiplies fastest, and of a copy."""
    if "achievable" in data:
        return tuple(Achievable(kind, float(fraction)) for kind, fraction in data["achievable"].items())
    best = _best({dtype: grid["fractions"] for dtype, grid in data["grids"]["matmul.nn"].items()}, data["reached"])
    return (
        Achievable("matmul", best),
        Achievable("memory", min(1.0, data["reached"]["copy"] / data["memory_bandwidth"])),
    )


@CACHES.memoized(maxsize=256)
def profile_of(device: Device) -> DeviceProfile:
    """Prices on this device: by its own profile's tables, or by its kind's reference at this device's rates."""
    found = tables(device.profile or REFERENCE.get(device.kind, REFERENCE["cuda"]))
    copied = device.memory_bandwidth * device.achievable_fraction("memory")
    best = _best({dtype: grid.fractions for dtype, grid in found.grids["matmul.nn"].items()}, found.reached)
    return DeviceProfile(
        found,
        dict(device.peaks),
        device.memory_bandwidth,
        device.launch_s,
        memory=copied / found.reached["copy"],
        reach=device.achievable_fraction("matmul") / best,
    )


def _best(fractions: Mapping[str, list[float]], reached: Mapping[str, float]) -> float:
    """The best fraction of peak in the dtype whose products were fastest."""
    return min(1.0, max(fractions[max(fractions, key=lambda dtype: reached.get(dtype, 0.0))]))
