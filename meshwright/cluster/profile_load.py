"""Profiles as files: those that meshwright ships, and those that `meshwright calibrate` writes.

A file either has tables (it was measured) or names one that has (`like`), with figures of its own. docs/calibrate.md
has every field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.caches import CACHES
from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.device_profile import WEIGHTS, DeviceProfile, window_place
from meshwright.cluster.kernel_table import PARTS, MeasuredKernels, Rates, kernel_table, measured_kernels
from meshwright.cluster.profile_tables import Curve, Grid, OptimizerCost, Tables
from meshwright.errors import ClusterError

SCHEMA = 2
SHIPPED = Path(__file__).parent / "profiles"
REFERENCE = {"cuda": "H200-SXM-141GB", "cpu": "cpu"}
"""Whose tables serve devices of a kind that have none of their own."""

_FIGURES = ("memory_bytes", "reserve_bytes", "memory_bandwidth", "launch_s")
_TABLES = ("kernels", "grids", "scatters", "factors", "host", "optimizers")
_LEAST, _MOST, _MOST_UNITS = 1e-30, 1e30, 1_000_000
"""Beyond these, seconds would be infinite."""
_AXES = {"matmul": 3}
"""How many sizes a grid is over, by the first word of its name; of others there are 2."""
_NEEDED = {"grids": ("matmul.nn", "matmul.nt", "matmul.tn"), "optimizers": ("adamw.fused",)}
_KNOWN = (
    *("schema", "name", "kind", "like", "peaks", "achievable", "reached", "host_link", "measured", "sources"),
    *("pairs", "units", "measured_kernels", "assumed_host_link"),
)

if TYPE_CHECKING:
    from meshwright.cluster.scatter import Scatter


def shipped() -> list[str]:
    """Names of the profiles that come with meshwright."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def profile_path(name: str) -> Path:
    """The file of a profile: a shipped one by its name, any other by its path."""
    if not name.endswith(".json"):
        if name not in shipped():
            raise ClusterError(f"device profile {name!r}", f"one of {', '.join(shipped())}, or a path ending in .json")
        return SHIPPED / f"{name}.json"
    return Path(name)


@CACHES.memoized()
def read_profile(name: str) -> dict[str, Any]:
    """A profile's JSON, checked."""
    path = profile_path(name)
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: of a path with a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(
            f"device profile {name}: {why}", "a file written by `meshwright calibrate`", "check the path"
        ) from error
    try:
        data = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
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
        if "float32" not in data["peaks"]:
            raise self.fail("peaks", data["peaks"], "at least float32")
        units = data.get("units", 1)
        if type(units) is not int or not 1 <= units <= _MOST_UNITS:
            raise self.fail("units", units, f"a whole number from 1 to {_MOST_UNITS}")
        if "achievable" in data or "like" in data:
            for kind, fraction in self.table("achievable", data.get("achievable")).items():
                self.positive(f"achievable.{kind}", fraction)
        if "measured_kernels" in data:
            self.measured_kernels(data["measured_kernels"])
        if "like" in data:
            if data["like"] not in shipped():  # a file does not say which other files are read
                raise self.fail("like", data["like"], f"a shipped profile with tables, of {', '.join(shipped())}")
        else:
            self.tables(data)
            self.factors(data["factors"], data["reached"])

    def measured_kernels(self, given: Any) -> None:
        table = self.table("measured_kernels", given)
        if table.get("table") not in measured_kernels():
            raise self.fail("measured_kernels.table", table.get("table"), f"one of {', '.join(measured_kernels())}")
        parts = table.get("parts", list(PARTS))
        if not isinstance(parts, list) or not set(parts) <= set(PARTS):
            raise self.fail("measured_kernels.parts", parts, f"some of {', '.join(PARTS)}")
        processors = table.get("processors", 1)
        if type(processors) is not int or processors < 1:
            raise self.fail("measured_kernels.processors", processors, "a whole number from 1 on")

    def tables(self, data: Mapping[str, Any]) -> None:
        for key in (*_TABLES, "reached"):
            self.table(key, data.get(key))
        self.rates("reached", data["reached"])
        if "copy" not in data["reached"]:
            raise self.fail("reached.copy", None, "a positive figure")
        for key, names in _NEEDED.items():
            for name in names:
                if not self.table(f"{key}.{name}", data[key].get(name)):
                    raise self.fail(f"{key}.{name}", data[key][name], "figures of at least one dtype")
        for name, curves in data["kernels"].items():
            for dtype, rows in self.table(f"kernels.{name}", curves).items():
                self.points(f"kernels.{name}.{dtype}", rows)
        for name, grids in data["grids"].items():
            for dtype, grid in self.table(f"grids.{name}", grids).items():
                self.grid(f"grids.{name}.{dtype}", grid)
        for name, by in data["scatters"].items():
            if name not in WEIGHTS and name.split(".")[0] not in WEIGHTS:
                raise self.fail(f"scatters.{name}", by, f"one of {', '.join(WEIGHTS)}")
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

    def factors(self, factors: Mapping[str, Any], reached: Mapping[str, Any]) -> None:
        """How much longer products take whose sizes are odd, rows of groups, images, and what runs in a step."""
        for name, by in factors.items():
            for dtype, entry in self.table(f"factors.{name}", by).items():
                field = f"factors.{name}.{dtype}"
                if name == "misaligned":
                    for layout, rows in self.table(field, entry).items():
                        self.rows(f"{field}.{layout}", rows, 2, 3)
                elif name == "channels_last":
                    for way in ("plain", "window"):
                        self.positive(f"{field}.{way}", self.table(field, entry).get(way))
                elif name in ("grouped", "steady"):
                    self.rows(field, entry, 4 if name == "grouped" else 3)
                    if [row[0] for row in entry] != sorted({row[0] for row in entry}) or len(entry) < 2:
                        raise self.fail(field, entry, "two rows or more, in rising order")
                    if name == "steady" and dtype not in reached:
                        raise self.fail(f"reached.{dtype}", None, f"a figure, which {field} is relative to")

    def rows(self, field: str, rows: Any, width: int, count: int | None = None) -> None:
        if not isinstance(rows, list) or not rows or len(rows) != (count or len(rows)):
            raise self.fail(field, rows, f"{count or 'some'} rows of {width} numbers")
        for row in rows:
            self.numbers(field, row, width, zero=False)

    def positive(self, field: str, value: Any, zero: bool = False) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not (_LEAST <= value <= _MOST or (zero and value == 0)):
            expected = "zero or more" if zero else f"a positive figure, from {_LEAST:g}"
            raise self.fail(field, value, f"{expected} to {_MOST:g}")

    def numbers(self, field: str, value: Any, count: int, zero: bool = True) -> None:
        if not isinstance(value, list) or len(value) != count:
            raise self.fail(field, value, f"{count} numbers")
        for number in value:
            self.positive(field, number, zero=zero)

    def points(self, field: str, rows: Any) -> None:
        if not isinstance(rows, list) or not rows:
            raise self.fail(field, rows, "points of [bytes, seconds]")
        for row in rows:
            self.numbers(field, row, 2, zero=False)
        if len({row[0] for row in rows}) < len(rows):
            raise self.fail(field, rows, "points of as many different bytes")

    def scatter(self, field: str, scatter: Any, sizes: int) -> None:
        points = self.table(field, scatter).get("points")
        if not isinstance(points, list) or not points:
            raise self.fail(f"{field}.points", points, f"points of {sizes} sizes")
        for point in points:
            self.numbers(f"{field}.points", point, sizes, zero=False)
        by_side = self.table(f"{field}.ratios", scatter.get("ratios"))
        if set(by_side) != set(wanted := _SIDES[field.split(".")[1]]):
            raise self.fail(f"{field}.ratios", list(by_side), f"ratios of {', '.join(wanted)}")
        for side, ratios in by_side.items():
            self.numbers(f"{field}.ratios.{side}", ratios, len(points), zero=False)
            if "doubts" in scatter:
                doubts = self.table(f"{field}.doubts", scatter["doubts"]).get(side)
                self.numbers(f"{field}.doubts.{side}", doubts, len(points), zero=False)

    def grid(self, field: str, grid: Any) -> None:
        cells, axes = 1, self.table(f"{field}.axes", self.table(field, grid).get("axes"))
        if len(axes) != _AXES.get(field.split(".")[1], 2):
            raise self.fail(f"{field}.axes", axes, f"{_AXES.get(field.split('.')[1], 2)} of them")
        for axis, sizes in axes.items():
            if not isinstance(sizes, list) or not sizes:
                raise self.fail(f"{field}.axes.{axis}", sizes, "sizes in rising order")
            for size in sizes:
                self.positive(f"{field}.axes.{axis}", size)
            if sizes != sorted(set(sizes)):
                raise self.fail(f"{field}.axes.{axis}", sizes, "sizes in rising order")
            cells *= len(sizes)
        fractions = grid.get("fractions")
        if not isinstance(fractions, list) or len(fractions) != cells:
            raise self.fail(f"{field}.fractions", fractions, f"{cells} fractions, one for each point of the axes")
        for fraction in fractions:
            self.positive(f"{field}.fractions", fraction)


_SIDES = {"attention": ("forward", "backward"), "convolution": ("forward", "input", "weight")}
_SIZES = {"convolution.window": 6}
"""Of points that are kept as they were measured, where they are told apart by more than that."""


def scatter_of(name: str, dtype: str, data: Mapping[str, Any]) -> Scatter:
    points = data["points"]
    if name == "convolution.window":
        points = [window_place(2 if dtype == "bfloat16" else 4, *point) for point in points]
    from meshwright.cluster.scatter import Scatter  # which imports numpy

    return Scatter(points, data["ratios"], weights_of(name), data.get("doubts"))


def weights_of(name: str) -> tuple[float, ...]:
    """Of a scatter: attention's variants have the same sizes."""
    return WEIGHTS[name] if name in WEIGHTS else WEIGHTS[name.split(".")[0]]


@CACHES.memoized()
def tables(name: str) -> Tables:
    """The tables of a profile, its own or those of the one it is like: clocks under load are each device's own."""
    data = read_profile(name)
    if "like" in data:
        if "like" in read_profile(data["like"]):
            raise ClusterError(f"device profile {name}: like is {data['like']!r}", "a profile with tables of its own")
        return replace(tables(data["like"]), steady={})
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
def profile_of(device: Device, library: bool = False) -> DeviceProfile:
    """Prices on this device: by its own profile's tables, or by its kind's reference at this device's rates.

    library: kernels as inference libraries have them (FlashAttention-3, fused experts) even where meshwright was
    calibrated on the device, and so knows what PyTorch's own take.
    """
    found = tables(device.profile or REFERENCE.get(device.kind, REFERENCE["cuda"]))
    copied = device.memory_bandwidth * device.achievable_fraction("memory")
    measured = _measured(device, library)  # its fractions are of half precision: those of single are the tables' own
    best = _best({dtype: grid.fractions for dtype, grid in found.grids["matmul.nn"].items()}, found.reached)
    return DeviceProfile(
        found,
        dict(device.peaks),
        device.memory_bandwidth,
        device.launch_s,
        memory=copied / found.reached["copy"],
        reach=1.0 if measured and not measured.is_secondary else device.achievable_fraction("matmul") / best,
        measured=measured,
        sustained=_own(device, "sustained"),
        attention=_own(device, "attention"),
    )


def _own(device: Device, kind: str) -> float:
    """A fraction that the device's own profile names; 0 where it does not."""
    return next((entry.fraction for entry in device.achievable if entry.kind == kind), 0.0)


def _measured(device: Device, library: bool) -> MeasuredKernels | None:
    """Kernels that were measured on this device or its nearest relative; a fraction of its own scales them."""
    given = read_profile(device.profile).get("measured_kernels") if device.profile else None
    if given is None:
        return None
    there = device_of(given["table"])
    reach = device.achievable_fraction("matmul") / there.achievable_fraction("matmul")
    parts = frozenset(PARTS if library else given.get("parts", PARTS))
    own, theirs = (Rates(dict(one.peaks), one.memory_bandwidth) for one in (device, there))
    processors = processors_of(device.profile) or processors_of(given["table"])
    return MeasuredKernels(kernel_table(given["table"]), own, theirs, reach, parts, processors)


def processors_of(name: str) -> int:
    """How many multiprocessors a profile says that its device has; zero where it does not say."""
    data = read_profile(name)
    found: int = data.get("measured_kernels", {}).get("processors") or data.get("units", 0)
    return found


def _best(fractions: Mapping[str, list[float]], reached: Mapping[str, float]) -> float:
    """The best fraction of peak in the dtype whose products were fastest."""
    return min(1.0, max(fractions[max(fractions, key=lambda dtype: reached.get(dtype, 0.0))]))
