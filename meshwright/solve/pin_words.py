"""What can be said of pins before anything is solved: their words, before a model is captured; then its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from meshwright.capture.experts import MIX
from meshwright.capture.program import Program
from meshwright.capture.sizes import BatchSize
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.pins.offload import pinned_offload
from meshwright.pins.parts import pin_parts
from meshwright.pins.spelling import WORDS, check_spelling, storage_layout
from meshwright.solve.by_method import IN_STAGES, no_stages, pinned_method
from meshwright.solve.pipeline.pins import pipeline_pins


def check_words(texts: Iterable[str], cluster: Cluster | None = None) -> None:
    """Refuses what no model could have: what is misspelt, stages and methods that there are not."""
    texts = tuple(texts)
    check_spelling(texts, cluster)
    method, texts = pinned_method(texts)
    _, texts = pinned_offload(texts)
    if pipeline_pins(texts).pipeline and method not in IN_STAGES:
        raise no_stages(method)


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
    """Sizes of the dim after samples, of values of three dims (samples, positions, features)."""
    shapes = [value.type.shape for graph in program.graphs for value in graph.values().values()]
    rows = (shape for shape in shapes if len(shape) == 3 and isinstance(shape[0], BatchSize))
    return {shape[1] for shape in rows if not isinstance(shape[1], BatchSize)}


def experts_of(program: Program) -> set[int]:
    """How many experts mixtures of the model have."""
    found = set()
    for graph in program.graphs:
        values = graph.values()
        for op in graph.ops:
            if op.target == MIX:
                shapes = [values[name].type.sizes for name in op.operands() if name in {v.name for v in graph.params}]
                found |= {shape[0] for shape in shapes if len(shape) == 3}
    return found


def check_storage(texts: Iterable[str], program: Program) -> None:
    """Refuses storage of parameters that the model has not, or of dims that they have not, or two of one parameter."""
    pinned: dict[str, tuple[str, object]] = {}
    for text in texts:
        key, value = pin_parts(text)
        layout = storage_layout(value) if key not in WORDS else None
        if layout is None:
            continue
        matching = [parameter for parameter in program.parameters if fnmatchcase(parameter.name, key)]
        if not matching:
            names = ", ".join(parameter.name for parameter in program.parameters[:3])
            raise PlanError(
                f"pin {text} matches no parameter", f"a pattern over names such as {names}", "correct the pin"
            )
        said = layout, value.partition(" on ")[2]
        for parameter in matching:
            other, same = pinned.setdefault(parameter.name, (text, said))
            if same != said:
                given = f"pins {other} and {text}, which both match {parameter.name}"
                raise PlanError(given, "one storage for each parameter", "drop one of them, or let them match others")
            deep = [state.dim for state in layout if state.dim is not None and state.dim >= len(parameter.type.sizes)]
            if deep:
                raise PlanError(
                    f"pin {text} for {parameter.name} of shape {tuple(parameter.type.sizes)}",
                    f"a dim from 0 to {len(parameter.type.sizes) - 1}",
                    "correct the pin, or let its pattern match fewer parameters",
                )
