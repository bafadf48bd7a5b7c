"""Whole numbers of a batch that index something: token ids, targets. One outside its range is refused by name.

Where the vocabulary is cut, an id that no rank holds would otherwise go unnoticed; elsewhere aten would say that an
index is out of range, but not which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from meshwright.capture.op import Op, Value
from meshwright.capture.program import Program, SegmentGraph
from meshwright.errors import RunError
from meshwright.runtime.step.batches import Batches

_SAME = frozenset({"view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "t", "expand"})
_SAME |= {"clone", "contiguous", "alias", "detach", "to", "_to_copy"}
"""Ops whose result has all of the numbers of their first operand, and no others."""
_PART = frozenset({"slice", "select", "narrow", "constant_pad_nd", "pad", "index_select"})
"""Ops whose result has some of them: what they leave out may be anything."""
_LOSSES = frozenset({"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"})
_IGNORED = -100
"""Targets that count for nothing, unless a loss says otherwise."""


Origin = tuple[str, bool]
"""The input whose numbers a value holds, and whether it holds all of them."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from 0 on that an input may hold, and one more, which is ignored. what: what they are. whole: all of the
    input must; else only a part of it that is read."""

    count: int
    ignored: int | None
    what: str
    whole: bool = True

    @property
    def width(self) -> tuple[bool, int, bool]:
        return not self.whole, self.count, self.ignored is not None

    @property
    def targets(self) -> bool:
        """Whether they are the targets of a loss."""
        return self.ignored is not None

    def check(self, name: str, tensor: Tensor) -> None:
        if not tensor.numel():
            return
        lowest, highest = (int(end) for end in tensor.aminmax())
        if lowest >= 0 and highest < self.count:
            return
        given = tensor if self.ignored is None else tensor[tensor != self.ignored]
        if not given.numel():
            return
        lowest, highest = (int(end) for end in given.aminmax())
        if lowest < 0 or highest >= self.count:
            besides = "" if self.ignored is None else f", or {self.ignored}, which is ignored"
            raise RunError(
                f"batch tensor {name!r} holds numbers from {lowest} to {highest}",
                f"0 to {self.count - 1}, {self.what}{besides}",
                "correct the data, or build the model for it",
            )


def ranges_of(program: Program) -> dict[str, Range]:
    """The narrowest of each input that is read by an embedding or as the targets of a loss."""
    found: dict[str, Range] = {}
    inputs = {value.name: (value.name, True) for value in program.inputs if not value.type.has_gradient}
    origins = inputs | _follow(program.prologue, inputs, found)
    for segment in program.segments:
        graph = program.graph(segment)
        bound = zip((value.name for value in graph.shared_values), segment.shared_values, strict=True)
        _follow(graph, {local: origins[name] for local, name in bound if name in origins}, found)
    return found


def check_ranges(ranges: Mapping[str, Range], given: Mapping[str, object], *, on_host: bool) -> None:
    """on_host: look at those in the host's memory only; to look at others would be to wait for the device."""
    for name, allowed in ranges.items():
        tensor = given.get(name)
        if allowed.whole and isinstance(tensor, Tensor) and (tensor.device.type == "cpu" or not on_host):
            allowed.check(name, tensor)


@contextmanager
def explained(ranges: Mapping[str, Range], batches: Batches, batch: object) -> Iterator[None]:
    """Where an index is out of range inside, the input that it may have come from is looked for."""
    try:
        yield
    except IndexError:
        for name, tensor in batches.named(batch).items():
            if name in ranges and isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                ranges[name].check(name, tensor)
        raise


def _follow(graph: SegmentGraph, origins: dict[str, Origin], found: dict[str, Range]) -> dict[str, Origin]:
    """Which input each value of a graph holds the numbers of; what reads them narrows what is found."""
    origins = dict(origins)
    values = graph.values()
    for op in graph.ops:
        operands, kind = op.operands(), _kind(op)
        if operands and operands[0] in origins and kind in _SAME | _PART:
            name, whole = origins[operands[0]]
            origins[op.name] = name, whole and kind in _SAME
        for read, allowed in _read(op, values):
            if read in origins:
                name, whole = origins[read]
                here = replace(allowed, whole=whole)
                found[name] = min(here, found.get(name, here), key=lambda one: one.width)
    return origins


def _read(op: Op, values: Mapping[str, Value]) -> Iterator[tuple[str, Range]]:
    operands = op.operands()
    if _kind(op) == "embedding":
        rows, *_ = values[operands[0]].type.shape
        if isinstance(rows, int):
            yield operands[1], Range(rows, None, "the rows of an embedding")
    elif _kind(op) in _LOSSES:
        shape = values[operands[0]].type.shape
        classes = shape[1 if len(shape) > 1 else 0]
        given = op.args[4] if len(op.args) > 4 else dict(op.kwargs).get("ignore_index", _IGNORED)
        if isinstance(classes, int):
            yield operands[1], Range(classes, given if isinstance(given, int) else _IGNORED, "the classes of the loss")


def _kind(op: Op) -> str:
    return op.target.split(".")[1] if op.target.startswith("aten.") else ""
