"""Ops that couple samples: those whose result would be another one if the batch were run in parts.

A step may run its batch in parts where the loss is a sum or mean over samples of what each sample gives by itself.
The batch is a named size, so its dim in every value is known; each value has one of a few *kinds*, and an op is
marked where its operands' kinds do not allow what it does:

    FIXED  nothing of the samples: parameters, constants, shapes
    LINE   the samples' own numbers, in order (`arange` over the batch)
    ROWS   along the batch, every entry follows from one sample
    ORDER  a permutation of rows (a sort over the batch), as experts are dispatched by
    SUM    a sum over samples, of which only linear use may be made
    PAIRS  samples against samples, after the op that was marked for it

Results of a marked op count as ROWS or FIXED again, so that each mark is one cause and not all that follows.
A loss's own mean (`cross_entropy` over the targets that count) is taken to be a mean over samples.
"""

from __future__ import annotations

from meshwright.capture.coupling.parts import STATISTICS
from meshwright.capture.coupling.rules import PARTS, PRODUCTS, VIEWS, rule
from meshwright.capture.coupling.state import FIXED, LINE, SUM, Kind, Samples, packet
from meshwright.capture.flat import Flat
from meshwright.capture.functional import BATCH_NORM
from meshwright.capture.program import Op

_LINEAR = VIEWS | PARTS | {"add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "cat", "stack"}
BATCHES = "num_batches_tracked"
"""What BatchNorm counts, and reads only without a momentum."""
_GROUPED = frozenset({"grouped_mm", "_grouped_mm", "grouped_mm_fallback"})


def couplings(flat: Flat) -> dict[str, str]:
    """For each op that couples samples, by name: what it does."""
    seen = Samples(flat)
    found = {op.name: why for op in flat.ops if (why := _step(seen, op))}
    makers = {value.name: op.name for op in flat.ops for value in op.results}
    for buffer, value in flat.updates:
        if makers.get(value, "") in found:
            continue
        if seen.states[value].kind is not Kind.FIXED:
            found[makers[value]] = f"gives {buffer} what follows from the samples of a batch"
        elif not buffer.endswith(BATCHES):
            found[makers[value]] = f"changes {buffer} in every forward, and so once for each micro-batch"
    return found


def _step(seen: Samples, op: Op) -> str:
    """Enter an op's results; why, if it couples samples."""
    seen.types |= {value.name: value.type for value in op.results}
    name = packet(op.target)
    kinds = {seen.states[operand].kind for operand in op.operands()}
    if op.target == BATCH_NORM:
        return seen.mark(op, STATISTICS)
    if kinds <= {Kind.FIXED, Kind.LINE} or name.endswith("_like") or name.startswith("new_"):
        line = name == "arange" or (Kind.LINE in kinds and (name in VIEWS or _takes_all(seen, op, name)))
        seen.enter(op, LINE if line and seen.batch_dims(op.name) else FIXED)
        return ""
    if Kind.PAIRS in kinds:
        seen.enter_by_shape(op, FIXED)
        return ""
    if name in _GROUPED:
        seen.enter(op, seen.states[op.operands()[0]])
        return ""
    if Kind.SUM in kinds:
        return _with_sum(seen, op, name)
    why = rule(name)(seen, op)
    return seen.mark(op, why) if why else ""


def _takes_all(seen: Samples, op: Op, name: str) -> bool:
    """A slice of the whole, as indexing with `[:, None]` leaves."""
    return name == "slice" and seen.types[op.name].shape == seen.types[op.operands()[0]].shape


def _with_sum(seen: Samples, op: Op, name: str) -> str:
    """A sum over samples may be added to others, scaled and looked at in parts."""
    states = [seen.states[operand] for operand in op.operands()]
    sums = [index for index, state in enumerate(states) if state.kind is Kind.SUM]
    alone = all(state.kind in (Kind.SUM, Kind.FIXED, Kind.LINE) for state in states)
    scaled = len(sums) == 1 and (name in PRODUCTS or name == "mul" or (name == "div" and sums == [0]))
    if alone and (name in _LINEAR or scaled):
        seen.enter(op, SUM)
        return ""
    return seen.mark(op, "makes more than a sum of what is summed over samples")
