"""How pins are written: refused at once, before a model is captured or torch is there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from math import prod
from typing import TYPE_CHECKING

from meshwright.errors import LayoutError, PlanError, counted
from meshwright.pins.methods import METHODS, check_method
from meshwright.pins.offload import SHOWN, WORD, read_offload
from meshwright.pins.parts import AXES, NUMBERS, no_room, pin_parts, pinned_mesh, split_pin
from meshwright.sizes import is_whole

if TYPE_CHECKING:
    from meshwright.cluster import Cluster
    from meshwright.layout import Layout

WORDS = {
    "pp": "pp=2 or pp=2+2+4",
    "layers": "layers=9+17 (of each stage)",
    "schedule": "schedule=1f1b",
    "mesh": "mesh=2x4",
    "dp": "dp=4",
    "tp": "tp=2",
    "cp": "cp=2",
    "ep": "ep=2",
    "vpp": "vpp=2",
    "sp": "sp=on or sp=off",
    "zero": "zero=0 to 3, zero=3:8",
    "microbatch": "microbatch=4",
    "microbatches": "microbatches=4",
    "split": "split=matmul",
    "recompute": f"recompute={'|'.join(METHODS)}",
    WORD: SHOWN,
}
OTHERS = {
    "ddp": "zero=0",
    "fsdp": "zero=3",
    "hsdp": "zero=3:8",
    "checkpointing": "recompute=full",
    "activation_checkpointing": "recompute=full",
    "remat": "recompute=full",
    "accumulation": "microbatch=4",
    "grad_accum": "microbatch=4",
    **dict.fromkeys(
        ("micro_batch", "micro_batch_size"),
        "microbatch=, the number of micro-batches (micro_batch= of `price`: their size)",
    ),
    "pipeline": "pp=2",
    "stages": "pp=2",
    "tensor": "tp=2",
    "sequence": "sp=on",
    "context": "cp=2",
    "experts": "ep=2",
}
"""The field's words that are pins of ours by another name."""
NAMED = "or a parameter's storage such as layers.*.up.weight=S(0)"


def pin_options(pins: Iterable[str]) -> str:
    """As a command line takes them: `--pin dp=8 --pin zero=3`."""
    return " ".join(f"--pin {text}" for text in pins)


def check_spelling(texts: Iterable[str], cluster: Cluster | None = None) -> None:
    """Refuses unknown names, values that are not one, two of one name, and sizes that the cluster has not."""
    texts = tuple(texts)
    given: dict[str, str] = {}
    for text in texts:
        if not isinstance(text, str):
            raise PlanError(f"pin {text!r} is no text", f"`name=value`: {_known()}", "correct the pin")
        key, value = pin_parts(text)
        if not value:
            raise PlanError(f"pin {text!r}", f"`name=value`: {_known()}", "correct the pin")
        if key not in WORDS and storage_layout(value) is None:
            if "." in key or "*" in key:
                raise PlanError(f"pin {text!r}", "S(dim) or I after `=`, such as S(0)", "correct the pin")
            raise PlanError(f"pin {text!r}", f"one of {_known()}", _meant(text))
        if key == "recompute":
            check_method(f"pin {text!r}", value)
        if key in ("split", "sp") and value not in {"split": ("matmul",), "sp": ("on", "off")}[key]:
            raise PlanError(f"pin {text!r}", WORDS[key], "correct the pin")
        if key == "zero" and value.partition(":")[0] not in ("0", "1", "2", "3"):
            raise PlanError(f"pin {text!r}", WORDS[key], "correct the pin")
        if key == WORD and read_offload(value) is None:
            raise PlanError(f"pin {text!r}", f"{SHOWN}: a fraction above 0, of at most 1", "correct the pin")
        if key in NUMBERS and not is_whole(value):
            raise PlanError(f"pin {text!r}", f"a whole number from 1, such as {WORDS[key]}", "correct the pin")
        key = split_pin(text)[0]
        if (other := given.setdefault(key, value)).strip("[]") != value.strip("[]"):
            raise PlanError(f"pins {key}={other} and {key}={value}", f"one {key}", "drop one of them")
    sizes = pinned_mesh(texts)
    if cluster is not None and "pp" not in given:
        _check_sizes(given, sizes, cluster)


def _meant(text: str) -> str:
    """What to do about a name that is none: each of several pins by itself, the field's word, the nearest of ours."""
    key, value = pin_parts(text)
    if "=" in key:
        several = [part for part in re.split(r"[,;\s]+", text) if part]
        return f"give each by itself: {' '.join(f'--pin {one}' for one in several)}; in Python as a list"
    if (ours := OTHERS.get(key.lower().replace("-", "_"))) is not None:
        return f"did you mean {ours}?"
    close = get_close_matches(key, WORDS, n=2)
    return f"did you mean {' or '.join(f'{name}={value}' for name in close)}?" if close else "correct the pin"


def _check_sizes(given: dict[str, str], sizes: tuple[int, ...] | None, cluster: Cluster) -> None:
    """Of a plan of one stage: the mesh has all devices, and room for the axes that are asked for."""
    devices = cluster.device_count
    if sizes is not None and prod(sizes) != devices:
        raise PlanError(
            f"pin mesh={given['mesh']} ({counted(prod(sizes), 'device')}) on {cluster.name} with {devices}",
            f"sizes whose product is {devices}",
            "change the pin or the cluster",
        )
    asked: dict[str, int] = {key: int(given[key]) for key in AXES if key in given}
    if asked.get("tp") == 1 and "dp" in asked and prod(asked.values()) != devices:
        raise no_room(asked, devices)
    if asked and devices % prod(asked.values()):
        words = " and ".join(f"{key}={size}" for key, size in asked.items())
        raise PlanError(
            f"pin{'s' if len(asked) > 1 else ''} {words} on {counted(devices, 'device')}",
            f"axes, one for each pin, whose product divides {devices}",
            "change the pins or the cluster",
        )


def storage_layout(value: str) -> Layout | None:
    """Of a parameter, as a pin says it; None where it says none."""
    if not any(letter in value for letter in "SPRI"):
        return None  # known without the import, which takes a while

    from meshwright.layout import Layout

    state = value.partition(" on ")[0]
    try:
        return Layout.parse(state if state.startswith("[") else f"[{state}]")
    except LayoutError:
        return None


def _known() -> str:
    return ", ".join([*WORDS.values(), NAMED])
