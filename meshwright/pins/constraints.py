"""Constraints: pins as an object with typed fields instead of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeAlias

from meshwright.errors import PlanError, did_you_mean
from meshwright.pins.parts import NUMBERS, pin_parts
from meshwright.pins.spelling import check_spelling


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a user takes away from the planner. A field that is None is left to it.

    pp: number of pipeline stages, or the devices of each: `(2, 2, 4)`.
    layers: of each pipeline stage: `(9, 17)`.
    schedule: of the pipeline, such as `1f1b`.
    mesh: sizes of the axes: `(2, 4)`.
    dp, tp: devices that samples and weights are split over.
    cp: devices that each sample's sequence is split over (context parallel).
    ep: devices that experts are spread over.
    vpp: runs of segments of each pipeline stage (interleaved schedule).
    sp: sequence parallelism on or off.
    zero: 0 to 3; `"3:8"` shards within groups of 8.
    microbatch: number of micro-batches.
    recompute: a method of activation checkpointing, such as `full` or `flat`.
    split: `matmul`.
    offload: what lives in the host's memory: `none`, `auto`, `optimizer`, `weights`, or a part of it: `optimizer:0.5`.
    storage: of parameters by pattern: `{"layers.*.up.weight": "S(0)"}`.
    """

    pp: int | tuple[int, ...] | None = None
    layers: tuple[int, ...] | None = None
    schedule: str | None = None
    mesh: tuple[int, ...] | None = None
    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vpp: int | None = None
    sp: bool | None = None
    zero: int | str | None = None
    microbatch: int | None = None
    recompute: str | None = None
    split: str | None = None
    offload: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Refuses names that no field has: Python's own message would not say which there are."""
        known = [one.name for one in fields(cls)]
        if given:
            shown = f"Constraints({', '.join(map(repr, given))})"
            raise PlanError(shown, "values by name, such as Constraints(tp=2)", "name each of them")
        for name, value in named.items():
            if name not in known:
                meant = did_you_mean(name, known, most=2)
                raise PlanError(f"Constraints({name}={value!r})", f"one of {', '.join(known)}", meant)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Refuses numbers that are none. The rest is checked where the pins are used."""
        check_spelling(text for text in self.pins() if pin_parts(text)[0] in (*NUMBERS, "zero"))

    def pins(self) -> tuple[str, ...]:
        """The same as text, as `Plan.pins` has it; what it says is checked where pins are."""
        if self.sp is not None and not isinstance(self.sp, bool):
            raise PlanError(f"Constraints(sp={self.sp!r})", "True or False", "correct it")
        words: dict[str, object] = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "storage"}
        words |= {"pp": _joined(self.pp, "+"), "layers": _joined(self.layers, "+"), "mesh": _joined(self.mesh, "x")}
        words["sp"] = None if self.sp is None else "on" if self.sp else "off"
        found = [f"{name}={value}" for name, value in words.items() if value is not None]
        return (*found, *(f"{name}={layout}" for name, layout in self.storage.items()))


def _joined(sizes: int | tuple[int, ...] | None, sign: str) -> object:
    return sign.join(map(str, sizes)) if isinstance(sizes, tuple | list) else sizes


GivenPins: TypeAlias = str | Iterable[str] | Mapping[str, object] | Constraints
"""Text such as `tp=2`, a list of such, the same by name, or Constraints."""


def pin_texts(pins: GivenPins | None) -> tuple[str, ...]:
    """Pins as text, from any of the forms in which users give them."""
    if pins is None:
        return ()
    if isinstance(pins, Constraints):
        return pins.pins()
    if isinstance(pins, str):
        return (pins,)
    if isinstance(pins, Mapping):  # values of fields, or texts as a list has them: a parameter's storage, `sp="on"`
        known = {one.name for one in fields(Constraints)}
        typed: dict[str, Any] = {
            name: value for name, value in pins.items() if name in known and not isinstance(value, str)
        }
        rest = (f"{name}={value}" for name, value in pins.items() if name not in typed)
        return (*Constraints(**typed).pins(), *rest)
    if not isinstance(pins, Iterable):
        raise PlanError(
            f"pins={pins!r}", 'text such as "tp=2", a list of such, or {"tp": 2}', "correct it, or give no pins"
        )
    return tuple(pins)
