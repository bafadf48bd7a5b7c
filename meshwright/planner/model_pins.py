"""Checks of pins against a model, before the search: names and dims of weights, sizes of sequences and experts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from meshwright.capture.experts import MIX
from meshwright.capture.program import Program
from meshwright.capture.sizes import BatchSize
from meshwright.errors import PlanError, did_you_mean
from meshwright.layout import Layout
from meshwright.pins.parts import pin_parts
from meshwright.pins.spelling import WORDS, storage_layout


def check_axes(texts: Iterable[str], program: Program) -> None:
    """Refuses `cp` of a model without a sequence that it divides, and `ep` of one without so many experts."""
    for key, value in map(pin_parts, texts):
        if key == "cp" and int(value) > 1 and not any(size % int(value) == 0 for size in _sequences(program)):
            sizes = ", ".join(map(str, sorted(_sequences(program)))) or "none"
            expected = f"a sequence dim that {value} divides; the model has {sizes}"
            raise PlanError(f"pin cp={value}", expected, "change the pin or the sequence")
        if key == "ep" and int(value) > 1 and not any(count % int(value) == 0 for count in experts_of(program)):
            counts = ", ".join(map(str, sorted(experts_of(program)))) or "none"
            expected = f"experts that {value} divides; the model has {counts}"
            raise PlanError(f"pin ep={value}", expected, "change the pin or the model")


def _sequences(program: Program) -> set[int]:
    """Sequence lengths: sizes of the second dim of values with dims (samples, positions, features)."""
    shapes = [value.type.shape for graph in program.graphs for value in graph.values().values()]
    rows = (shape for shape in shapes if len(shape) == 3 and isinstance(shape[0], BatchSize))
    return {shape[1] for shape in rows if not isinstance(shape[1], BatchSize)}


def experts_of(program: Program) -> set[int]:
    """Numbers of experts of the model's mixtures."""
    found = set()
    for graph in program.graphs:
        values = graph.values()
        for op in graph.ops:
            if op.target == MIX:
                shapes = [values[name].type.sizes for name in op.operands() if name in {v.name for v in graph.params}]
                found |= {shape[0] for shape in shapes if len(shape) == 3}
    return found


def check_names(texts: Iterable[str], model: nn.Module) -> None:
    """Refuses storage of weights that a model does not have, before it is captured."""
    named = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    names = [name for some in named for name, _ in some]
    for text, key, _ in _stored(texts):
        _matching(text, key, names)


def check_storage(texts: Iterable[str], sizes: Mapping[str, Sequence[int]]) -> None:
    """Refuses storage of parameters or dims that do not exist, and two storages of one parameter."""
    pinned: dict[str, tuple[str, object]] = {}
    for text, key, layout in _stored(texts):
        said = layout, pin_parts(text)[1].partition(" on ")[2]
        for name in _matching(text, key, list(sizes)):
            other, same = pinned.setdefault(name, (text, said))
            if same != said:
                given = f"pins {other} and {text}, which both match {name}"
                raise PlanError(given, "one storage for each parameter", "drop one of them, or let them match others")
            deep = [state.dim for state in layout if state.dim is not None and state.dim >= len(sizes[name])]
            if deep:
                raise PlanError(
                    f"pin {text} for {name} of shape {tuple(sizes[name])}",
                    f"a dim from 0 to {len(sizes[name]) - 1}",
                    "correct the pin, or let its pattern match fewer parameters",
                )


def _stored(texts: Iterable[str]) -> Iterator[tuple[str, str, Layout]]:
    """(pin, pattern, layout) of every pin that stores weights."""
    for text in texts:
        key, value = pin_parts(text)
        layout = storage_layout(value) if key not in WORDS else None
        if layout is not None:
            yield text, key, layout


def _matching(text: str, pattern: str, names: Sequence[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        alike = dict.fromkeys(re.sub(r"\b\d+\b", "*", name) if "*" in pattern else name for name in names)
        todo = did_you_mean(pattern, alike, "correct the pin")
        raise PlanError(
            f"pin {text} matches no parameter", f"a pattern over names such as {', '.join(names[:3])}", todo
        )
    return found
