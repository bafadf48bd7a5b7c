"""Pins: decisions a user takes away from the solver.

mesh=2x4        the sizes of the mesh axes, outermost first
dp=2            axes of 2 together are given to batch factors: boundaries sharded over samples, weights used whole;
                no other axis is, and with dp=1 none
tp=2            axes of 2 together are not given to a batch factor, and every weight of a matmul that can be split is,
                over no other axes (but experts, which may be spread); with tp=1 all axes are given to batch factors
sp=on|off       between segments, values are sharded over the tp axes (sequence parallel), or whole there
zero=0..3       where parameters used whole are stored: 0 whole; 1, 2 sharded; 3 sharded and gathered per use
zero=3:8        the same over the axis of 8 only, whole over the others (hybrid sharding)
microbatch=4    the batch is cut into so many parts, run one after another
recompute=NAME  how memory is saved: keep, full, selective, sqrt, rotor, flat, nested (`memory.methods`)
offload=NAME    what of the parameters lives on the host: none, auto, optimizer, weights; a part: optimizer:0.5
split=matmul    every matmul must be split over the mesh
layers.*.up.weight=S(0)     storage of the parameters whose names match; `S(0) on tp` on a mesh of several axes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from math import prod

from meshwright.cluster import Mesh
from meshwright.errors import LayoutError, PlanError, counted
from meshwright.layout import I, Layout, State
from meshwright.pins.parts import AXES, NUMBERS, no_room, pin_parts, split_pin

FREE = 2
"""Mesh axes that may do anything; of larger meshes the others are given to samples."""


@dataclass(frozen=True, slots=True)
class Pins:
    """dp_axes, tp_axes, cp_axes, ep_axes, zero_axes: indices of the mesh axes that the pins speak of.

    sequence: of `sp`, None if free. experts_whole: of `ep=1`, no axis holds different experts.

    model_axes: axes that are not given to samples though no pin names them. exact: samples are over `dp_axes` alone.
    """

    dp_axes: tuple[int, ...] = ()
    tp_axes: tuple[int, ...] = ()
    sequence: bool | None = None
    zero: int | None = None
    zero_axes: tuple[int, ...] | None = None
    split_matmuls: bool = False
    microbatches: int | None = None
    storage: tuple[tuple[str, Layout], ...] = ()
    model_axes: tuple[int, ...] = ()
    exact: bool = False
    cp_axes: tuple[int, ...] = ()
    ep_axes: tuple[int, ...] = ()
    experts_whole: bool = False

    @property
    def names_axes(self) -> bool:
        """Whether what axes are given to is limited."""
        return bool(self.named_axes or self.model_axes or self.experts_whole)

    @property
    def named_axes(self) -> tuple[int, ...]:
        return (*self.dp_axes, *self.tp_axes, *self.cp_axes, *self.ep_axes)

    @property
    def roles(self) -> Pins:
        """What they say of axes and matmuls alone."""
        return replace(self, sequence=None, zero=None, zero_axes=None, microbatches=None, storage=(), exact=False)

    @property
    def must_split(self) -> bool:
        return self.split_matmuls or bool(self.tp_axes)

    def storage_of(self, parameter: str) -> Layout | None:
        return next((layout for pattern, layout in self.storage if fnmatchcase(parameter, pattern)), None)

    def zero_of(self, axis: int) -> int | None:
        """The ZeRO stage asked for over an axis."""
        return 0 if self.zero_axes is not None and axis not in self.zero_axes else self.zero


def parse_pins(texts: Iterable[str], mesh: Mesh) -> Pins:
    """The first of `pin_readings`."""
    return pin_readings(texts, mesh)[0]


def pin_readings(texts: Iterable[str], mesh: Mesh) -> list[Pins]:
    """All that the pins may mean on this mesh: `tp=8` on 8x8 either axis. Of axes that are alike the first is meant.

    Refuses what contradicts the mesh or another pin, by name. Their words were checked before: `pins.check`.
    """
    texts = tuple(texts)
    given = dict(split_pin(text) for text in texts)
    numbers = {key: int(value) for key, value in given.items() if key in NUMBERS}
    zero, zero_axes = _zero(given.get("zero"), mesh)
    sequence, micro = (given["sp"] == "on" if "sp" in given else None), numbers.get("microbatch")
    found: list[Pins] = []
    refused: list[PlanError] = []
    exact, dp = "dp" in given or numbers.get("tp") == 1, numbers.get("dp")
    if numbers.get("tp") == 1:
        rest = mesh.world_size // (numbers.get("cp", 1) * numbers.get("ep", 1))
        if dp not in (None, rest):
            raise no_room({key: numbers[key] for key in AXES if key in numbers}, mesh.world_size)
        dp = rest
    if sequence and dp == mesh.world_size:
        raise _no_sequence([f"{key}={numbers[key]}" for key in ("dp", "tp") if key in numbers], mesh.world_size)
    sizes = {"dp": dp, **{key: numbers.get(key) for key in AXES[1:]}}
    for axes in _axes_of_all(mesh, sizes, given.get("mesh"), refused):
        try:
            storage = _storage(given, mesh, axes)
        except PlanError as error:
            refused.append(error)
            continue
        named = [axis for own in axes.values() for axis in own]
        others = tuple(axis for axis in range(len(mesh.axes)) if axis not in named)
        found.append(
            Pins(
                dp_axes=axes["dp"],
                tp_axes=axes["tp"],
                sequence=sequence,
                zero=zero,
                zero_axes=zero_axes,
                split_matmuls="split=matmul" in texts,
                microbatches=micro,
                storage=storage,
                model_axes=others if exact else (),
                exact=exact,
                cp_axes=axes["cp"],
                ep_axes=axes["ep"],
                experts_whole=numbers.get("ep") == 1,
            )
        )
    if not found:
        raise refused[0]
    return found


def _axes_of_all(
    mesh: Mesh, sizes: Mapping[str, int | None], shape: str | None, refused: list[PlanError]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Every way to give each pin axes of its own. refused: why where there are none."""
    found: list[dict[str, tuple[int, ...]]] = [{}]
    for name, size in sizes.items():
        more = []
        for axes in found:
            taken = tuple(axis for own in axes.values() for axis in own)
            try:
                more += [axes | {name: own} for own in _axes(mesh, name, size, taken, shape)]
            except PlanError as error:
                refused.append(error)
        found = more
    yield from found


def with_roles(pins: Pins, mesh: Mesh) -> list[Pins]:
    """What is searched on a mesh of more than FREE axes: all but FREE of them are given to samples.

    The axes before the last of these are then not given to samples unless they are among them: samples go over the
    outermost axes first, and no plan is met twice.
    """
    others = [axis for axis in range(len(mesh.axes)) if axis not in pins.named_axes]
    more = len(mesh.axes) - len(pins.dp_axes) - FREE
    if pins.exact:
        return [] if more > 0 and others else [pins]
    if len(mesh.axes) <= FREE or more > len(others):
        return [pins]
    found: dict[object, Pins] = {}
    for axes in combinations(others, max(0, more)):
        dp_axes = tuple(sorted((*pins.dp_axes, *axes)))
        model = tuple(axis for axis in others if axis < dp_axes[-1] and axis not in axes)
        found.setdefault(_kinds(mesh, axes), replace(pins, dp_axes=dp_axes, model_axes=model))
    return list(found.values())


def _kinds(mesh: Mesh, axes: Iterable[int]) -> tuple[object, ...]:
    """What a planner sees of some axes: sets of axes that are alike are the same to it."""
    return tuple(sorted((mesh.axes[axis].size, repr(mesh.axes[axis].kinds)) for axis in axes))


def _storage(given: dict[str, str], mesh: Mesh, axes: dict[str, tuple[int, ...]]) -> tuple[tuple[str, Layout], ...]:
    storage = []
    for key, value in given.items():
        if key not in (*NUMBERS, "zero", "mesh", "sp") and f"{key}={value}" != "split=matmul":
            storage.append((key, _layout(f"{key}={value}", given, mesh, axes)))
    return tuple(storage)


def _axes(
    mesh: Mesh, name: str, size: int | None, taken: tuple[int, ...], shape: str | None = None
) -> list[tuple[int, ...]]:
    """The fewest axes of this size together that no other pin has taken; one of each kind. shape: that a pin names."""
    if size is None or size == 1:
        return [()]
    free = [axis for axis in range(len(mesh.axes)) if axis not in taken]
    for count in range(1, len(free) + 1):
        found: dict[object, tuple[int, ...]] = {}
        for axes in combinations(free, count):
            if prod(mesh.sizes[axis] for axis in axes) == size:
                found.setdefault(_kinds(mesh, axes), axes)
        if found:
            return list(found.values())
    if shape is not None:
        left = ", ".join(str(mesh.sizes[axis]) for axis in free) or "none"
        expected = f"axes of the mesh whose product is {size}; it has {left}{' left' if taken else ''}"
        raise PlanError(f"pins mesh={shape} and {name}={size}", expected, "change one of them")
    raise PlanError(
        f"pin {name}={size} on {counted(mesh.world_size, 'device')}",
        f"axis sizes whose product is {mesh.world_size}, one for each pin",
        "change the pins or the cluster",
    )


def _no_sequence(others: list[str], devices: int) -> PlanError:
    """Every device has samples of its own: nothing is left to be sharded otherwise."""
    return PlanError(
        f"pins sp=on and {' and '.join(others)} on {devices} devices",
        "an axis that is not given to samples, for sp to shard values over",
        "drop sp=on, or pin tp=2 or more",
    )


def _zero(value: str | None, mesh: Mesh) -> tuple[int | None, tuple[int, ...] | None]:
    if value is None:
        return None, None
    stage, _, size = value.partition(":")
    if stage not in ("0", "1", "2", "3"):
        raise PlanError(f"pin zero={value}", "0, 1, 2 or 3", "change the pin")
    if not size:
        return int(stage), None
    last = [axis for axis, have in enumerate(mesh.sizes) if str(have) == size][-1:]
    if not last:
        raise PlanError(f"pin zero={value} on a mesh of {mesh.sizes}", "the size of one of its axes", "change the pin")
    return int(stage), tuple(last)


def _layout(text: str, given: Mapping[str, str], mesh: Mesh, named: dict[str, tuple[int, ...]]) -> Layout:
    state, _, axis = pin_parts(text)[1].partition(" on ")
    try:
        layout = Layout.parse(state if state.startswith("[") else f"[{state}]")
    except LayoutError as error:
        raise PlanError(f"pin {text!r}", "S(dim) or I after `=`, or split=matmul", "correct the pin") from error
    if axis:
        if len(layout.states) != 1:
            raise PlanError(f"pin {text!r}", "one state before ` on `", "correct the pin")
        states: list[State] = [I] * len(mesh.axes)
        states[_named_axis(text, axis, given, mesh, named)] = layout.states[0]
        layout = Layout(tuple(states))
    if len(layout.states) != len(mesh.axes) or any(state.kind not in "SI" for state in layout.states):
        raise PlanError(
            f"pin {text!r}", f"one of S(dim) or I for each of the {len(mesh.axes)} mesh axes", "correct the pin"
        )
    return layout


def _named_axis(
    text: str, name: str, given: Mapping[str, str], mesh: Mesh, named: Mapping[str, tuple[int, ...]]
) -> int:
    """The one axis that a storage pin means by `dp` or `tp`."""
    if name not in named:
        raise PlanError(f"pin {text!r}", "dp or tp after ` on `", "correct the pin")
    if len(named[name]) == 1:
        return named[name][0]
    if name not in given:
        raise PlanError(f"pin {text!r}", f"{name} pinned too", f"add a pin such as {name}=2")
    expected = f"{name} over one axis, of 2 devices or more"
    if named[name]:
        sizes = "x".join(str(mesh.sizes[axis]) for axis in named[name])
        raise PlanError(f"pin {text!r} with {name}={given[name]} over axes of {sizes}", expected, "change the mesh")
    raise PlanError(f"pins {text!r} and {name}={given[name]}", expected, "change one of them")
