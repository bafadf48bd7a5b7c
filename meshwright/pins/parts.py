"""The text of pins: names, values and sizes. Imports nothing that takes time: a misspelt pin is refused at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from meshwright.errors import PlanError, counted
from meshwright.sizes import is_whole

AXES = ("dp", "tp", "cp", "ep")
"""Pins that give mesh axes to something."""

NUMBERS = (*AXES, "vpp", "microbatch")


def pin_parts(text: str) -> tuple[str, str]:
    """(name, value), parted by the last `=`: a parameter's name may have some, and no value has."""
    key, mark, value = text.rpartition("=")
    return (key, value) if mark else (text, "")


def split_pin(text: str) -> tuple[str, str]:
    """(the name that it goes by, its value)."""
    key, value = pin_parts(text)
    return ("microbatch" if key == "microbatches" else key), value


def pinned_mesh(texts: Iterable[str]) -> tuple[int, ...] | None:
    """The axis sizes of a `mesh=` pin."""
    for text in texts:
        key, value = pin_parts(text)
        if key == "mesh":
            parts = value.split("x")
            if not all(map(is_whole, parts)):
                raise PlanError(f"pin {text!r}", "axis sizes such as mesh=2x4", "correct the pin")
            return tuple(map(int, parts))
    return None


def pinned_devices(texts: Iterable[str]) -> int:
    """A plan of one stage has a multiple of so many devices: the axes that are asked for."""
    return prod(int(value) for key, value in dict(map(split_pin, texts)).items() if key in AXES)


def no_room(asked: Mapping[str, int], devices: int) -> PlanError:
    """Pins that speak of all axes, and not of all devices."""
    return PlanError(
        f"pins {' and '.join(f'{key}={size}' for key, size in asked.items())} on {counted(devices, 'device')}",
        f"sizes whose product is {devices}: with tp=1 what is left has samples of its own",
        "change the pins, or drop one of them",
    )
