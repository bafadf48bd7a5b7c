"""Pins: decisions a user takes away from the solver.

dp=2            the axis of 2 is given to batch factors: boundaries sharded over samples, weights used whole
tp=2            the axis of 2 is not given to a batch factor, and every matmul that can be split is
zero=0..3       where parameters used whole are stored: 0 whole; 1, 2 sharded; 3 sharded and gathered per use
microbatch=4    the batch is cut into so many parts, run one after another
mesh=2x4        the sizes of the mesh axes
split=matmul    every matmul must be split over the mesh
layers.*.up.weight=S(0)     storage of the parameters whose names match
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from meshwright.cluster import Mesh
from meshwright.errors import LayoutError, PlanError
from meshwright.layout import Layout


@dataclass(frozen=True, slots=True)
class Pins:
    """dp_axis and tp_axis: indices of the mesh axes that the pins speak of."""

    texts: tuple[str, ...] = ()
    dp_axis: int | None = None
    tp_axis: int | None = None
    zero: int | None = None
    split_matmuls: bool = False
    microbatches: int | None = None
    storage: tuple[tuple[str, Layout], ...] = ()

    @property
    def must_split(self) -> bool:
        return self.split_matmuls or self.tp_axis is not None

    def storage_of(self, parameter: str) -> Layout | None:
        return next((layout for pattern, layout in self.storage if fnmatchcase(parameter, pattern)), None)


def parse_pins(texts: Iterable[str], mesh: Mesh, parameters: Iterable[str]) -> Pins:
    """Refuses what contradicts the mesh, the model or another pin, by name."""
    texts = tuple(texts)
    numbers: dict[str, int] = {}
    storage: list[tuple[str, Layout]] = []
    names = tuple(parameters)
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not value:
            raise PlanError(f"pin {text!r}", "`name=value` such as dp=2, tp=2, zero=3 or layers.*.up.weight=S(0)")
        if key in ("dp", "tp", "zero", "microbatch", "microbatches"):
            numbers[key.removesuffix("es") if key == "microbatches" else key] = _number(text, value)
        elif key == "mesh":
            _check_mesh(text, value, mesh)
        elif text != "split=matmul":
            storage.append((key, _layout(text, value, mesh)))
            if not any(fnmatchcase(name, key) for name in names):
                raise PlanError(f"pin {text!r} matches no parameter", f"a pattern over names such as {names[0]}")
    zero = numbers.get("zero")
    if zero not in (None, 0, 1, 2, 3):
        raise PlanError(f"pin zero={zero}", "0, 1, 2 or 3", "change the pin")
    dp_axis = _axis(mesh, "dp", numbers.get("dp"), None)
    tp_axis = _axis(mesh, "tp", numbers.get("tp"), dp_axis)
    micro = numbers.get("microbatch")
    if micro == 0:
        raise PlanError("pin microbatch=0", "at least 1", "change the pin")
    return Pins(texts, dp_axis, tp_axis, zero, "split=matmul" in texts, micro, tuple(storage))


def _check_mesh(text: str, value: str, mesh: Mesh) -> None:
    parts = value.split("x")
    if not all(part.isdigit() for part in parts):
        raise PlanError(f"pin {text!r}", "axis sizes such as mesh=2x4", "correct the pin")
    if tuple(map(int, parts)) != mesh.sizes:
        raise PlanError(
            f"pin {text!r} on {mesh.world_size} devices",
            f"axis sizes whose product is {mesh.world_size}",
            "change the pin or the cluster",
        )


def _axis(mesh: Mesh, name: str, size: int | None, taken: int | None) -> int | None:
    """The first axis of this size that no other pin has taken."""
    if size is None:
        return None
    found = next((i for i, have in enumerate(mesh.sizes) if have == size and i != taken), None)
    if found is None:
        raise PlanError(
            f"pin {name}={size} on {mesh.world_size} devices",
            f"axis sizes whose product is {mesh.world_size}, one for each pin",
            "change the pins or the cluster",
        )
    return found


def _number(text: str, value: str) -> int:
    if not value.isdigit():
        raise PlanError(f"pin {text!r}", "a whole number after `=`", "correct the pin")
    return int(value)


def _layout(text: str, value: str, mesh: Mesh) -> Layout:
    try:
        layout = Layout.parse(value if value.startswith("[") else f"[{value}]")
    except LayoutError as error:
        raise PlanError(f"pin {text!r}", "S(dim) or I after `=`, or split=matmul", "correct the pin") from error
    if len(layout.states) != len(mesh.axes) or any(state.kind not in "SI" for state in layout.states):
        raise PlanError(f"pin {text!r}", f"one of S(dim) or I for each of the {len(mesh.axes)} mesh axes")
    return layout
