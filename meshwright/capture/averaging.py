"""How the losses of micro-batches make the loss of the batch: read off the ops that end the Program.

A mean over samples is the mean of the micro-batches' means, where these are equally large; a cross-entropy is a mean
over the targets that count, so each micro-batch weighs as many as it has; a sum is the sum. Whatever else a loss is,
running it in micro-batches would compute something else, and is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.capture.program import Op, Program, Ref, SegmentGraph, Value
from meshwright.capture.sizes import KEEP_SIZES, BatchSize
from meshwright.errors import PlanError

MEAN, SUM = 1, 2
"""How ATen numbers a loss's `reduction`; 0 is none."""

_ELEMENTWISE = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "soft_margin_loss": 2, "kl_div": 2}
_ELEMENTWISE |= {"binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4}
_COUNTED = {"cross_entropy_loss": (2, 3, 4), "nll_loss_nd": (2, 3, 4), "nll_loss": (2, 3, 4)}
"""Where an op has its weight, reduction and ignore_index."""
_SAME = {"alias", "clone", "detach", "_to_copy", "to", "view", "reshape", "squeeze", "contiguous", "neg"}


@dataclass(frozen=True, slots=True)
class Averaging:
    """kind: `mean`, `sum`, or `count`, where a micro-batch weighs as many targets as differ from `ignored`.

    op: the name of the op, in the last segment's graph, whose targets are counted.
    """

    kind: str
    op: str = ""
    ignored: int = -100


CONSTANT = Averaging("constant")


def averaging(program: Program) -> Averaging:
    """Raises PlanError where the loss of a batch does not follow from those of its parts."""
    graph = program.graphs[program.segments[-1].graph]
    try:
        found = _Reader(graph).read(graph.outputs[0])
    except PlanError:
        if program.batch_varies:
            raise
        todo = f"{KEEP_SIZES}; or plan with one micro-batch"
        raise _refuse("is computed with the batch size as a plain number", todo) from None
    return Averaging("mean") if found == CONSTANT else found


def comes_apart(program: Program) -> bool:
    """Whether the loss of a batch follows from those of its parts, which the Program can be had for."""
    if not program.batch_varies:
        return False
    try:
        averaging(program)
    except PlanError:
        return False
    return True


class _Reader:
    def __init__(self, graph: SegmentGraph) -> None:
        self.values: dict[str, Value] = graph.values()
        self.makers: dict[str, Op] = {value.name: op for op in graph.ops for value in op.results}
        self.params = {value.name for value in graph.params}
        self.sampled = _sampled(graph)

    def read(self, name: str) -> Averaging:
        if name not in self.sampled:
            return CONSTANT
        op = self.makers.get(name)
        if op is None:
            raise _refuse(f"is {name!r}, which earlier layers make")
        return self._read_op(op)

    def _read_op(self, op: Op) -> Averaging:
        short = op.target.split(".")[1] if op.target.startswith("aten.") else op.target
        if short in _COUNTED:
            return self._counted(op, *(op.argument(*place) for place in _places(short)))
        if short in _ELEMENTWISE:
            return _reduced(op, op.argument(_ELEMENTWISE[short], "reduction", MEAN))
        if short in ("mean", "sum"):
            if not self._over_samples(op):
                raise _refuse(f"has a term ({op.target}) of values in which samples are mixed already")
            return Averaging(short)
        if short in ("mul", "div"):
            return self._scaled(op, short)
        if short in ("add", "sub"):
            return self._added(op)
        if short in _SAME:
            return self.read(op.operands()[0])
        raise _refuse(f"ends in {op.target}")

    def _counted(self, op: Op, weight: Any, reduction: Any, ignored: Any) -> Averaging:
        if isinstance(weight, Ref):
            raise _refuse(f"ends in {op.target} with class weights")
        soft = self.values[op.operands()[1]].type.is_float
        if reduction == MEAN and not soft:
            return Averaging("count", op.name, ignored)
        return _reduced(op, reduction)

    def _over_samples(self, op: Op) -> bool:
        """The op takes samples that are still apart, and leaves no dim of them."""
        operand, result = self.values[op.operands()[0]].type, self.values[op.name].type
        return any(isinstance(size, BatchSize) for size in operand.shape) and not result.shape

    def _scaled(self, op: Op, short: str) -> Averaging:
        first, second = op.args[:2]
        numbers = [arg for arg in (first, second) if not isinstance(arg, Ref)]
        sampled = [arg.name for arg in (first, second) if isinstance(arg, Ref) and arg.name in self.sampled]
        if len(sampled) != 1 or (short == "div" and sampled != [getattr(first, "name", None)]):
            raise _refuse(f"ends in {op.target} of two values that depend on the samples")
        found = self.read(sampled[0])
        if not any(isinstance(number, BatchSize) for number in numbers):
            return found
        if short == "div" and found.kind == "sum":
            return Averaging("mean")
        raise _refuse(f"ends in {op.target} by the batch size")

    def _added(self, op: Op) -> Averaging:
        kinds = [self.read(arg.name) if isinstance(arg, Ref) else CONSTANT for arg in op.args[:2]]
        varying = [kind for kind in kinds if kind != CONSTANT]
        constant = len(varying) < len(kinds)
        targets = [self.makers[kind.op].operands()[1] if kind.op else "" for kind in varying]
        same = len({(kind.kind, of, kind.ignored) for kind, of in zip(varying, targets, strict=True)}) <= 1
        if not same or (constant and varying and varying[0].kind == "sum"):
            raise _refuse("adds terms that average over different things")
        return varying[0] if varying else CONSTANT


def _sampled(graph: SegmentGraph) -> set[str]:
    """The values that depend on the batch or on earlier segments, and not on parameters alone."""
    found = {value.name for value in (*graph.inputs, *graph.shared_values)}
    for op in graph.ops:
        if found & set(op.uses()):
            found |= {value.name for value in op.results}
    return found


def _places(short: str) -> tuple[tuple[int, str, Any], ...]:
    weight, reduction, ignored = _COUNTED[short]
    return (weight, "weight", None), (reduction, "reduction", MEAN), (ignored, "ignore_index", -100)


def _reduced(op: Op, reduction: Any) -> Averaging:
    if reduction not in (MEAN, SUM):
        raise _refuse(f"ends in {op.target} that is not reduced")
    return Averaging("mean" if reduction == MEAN else "sum")


def _refuse(why: str, todo: str = "plan with one micro-batch") -> PlanError:
    return PlanError(
        f"micro-batches of a model whose loss {why}",
        "a mean or sum over samples or targets, which is had from its parts",
        todo,
    )
