"""What a run does with a printed layer besides computing it: what it keeps, recomputes, offloads, cuts into chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from meshwright.capture.program import Program, SegmentGraph
from meshwright.cluster import FLAT
from meshwright.errors import counted
from meshwright.explain.words import saving
from meshwright.generate.joint import label
from meshwright.layout import Collective
from meshwright.plan import Plan
from meshwright.plan.order import passes_of
from meshwright.predict.traffic import cut_of, halves
from meshwright.price.buckets import parameter_collectives

AGAIN = "recomputed in backward (activation checkpointing)"


def plainly(plan: Plan) -> str:
    """For the head of the file: what it leaves to the trainer."""
    found = saving(plan)
    if not found:
        return ""
    what = f"The plan has {' + '.join(found)}"
    return f"{what}: the trainer does that, as each function's docstring says. The functions here compute plainly."


def kept_words(program: Program, plan: Plan, index: int, graph: SegmentGraph) -> list[str]:
    """Of one layer, a sentence a line. graph: what it runs."""
    choice, tail = plan.choice(index), index == len(program.segments) - 1
    chunked = tail and choice.chunks > 1
    cut = cut_of(plan, program, index, plan.microbatch // choice.chunks if chunked else plan.microbatch)
    given = {label(value.name): value.name for value in graph.arguments()}
    lines = []
    if chunked:
        lines.append(f"runs in {choice.chunks} chunks of the samples (chunked loss), sizes here are of all of them")
        lines.append("a chunk runs forward and backward before the next one starts")
    elif choice.chunks > 1:
        lines.append(f"its backward runs in {choice.chunks} chunks of the samples (chunked backward)")
    if passes_of(plan.order, index):
        lines.append("runs forward more than once (nested checkpointing); the last time keeps what follows")
    if choice.recompute:
        whole = all(name in given for name in cut.saved)
        again = (*choice.recompute, *(name for name in cut.again if name not in choice.recompute))
        lines.append(f"{AGAIN}: {'the whole layer' if whole else _values(again, given)}")
    where = f"kept for backward{' of the chunk' if chunked else ''}"
    lines.append(f"{where}: {_values([name for name in cut.saved if name not in choice.offload], given)}")
    if choice.offload:
        lines.append(f"waits on the host until backward (activation offload): {_values(choice.offload, given)}")
    if chunked:
        names = [value.name for value in (*graph.inputs, *graph.params) if value.grad]
        lines.append(f"kept of each chunk: its loss and the gradients of {', '.join(names)}")
    return [*lines, *_communicates(program, plan, index, chunked)]


def _values(names: Collection[str], given: dict[str, str]) -> str:
    """Values by name; what an op makes besides its results is counted."""
    own = [given.get(name, name) for name in names if "~" not in name]
    ops = Counter(name.partition("~")[0] for name in names if "~" in name and not name.startswith("backward~"))
    return ", ".join([*own, *(f"{counted(count, 'inner value')} of {op}" for op, count in ops.items())]) or "nothing"


def _communicates(program: Program, plan: Plan, index: int, chunked: bool) -> list[str]:
    """Collectives of one micro-batch, those of weights aside."""
    found: dict[bool, list[Collective]] = {True: [], False: []}
    for forward, some in halves(plan, program, index, plan.common_layouts(program, index)):
        found[forward] += some
    names = {True: "all chunks, forward and backward" if chunked else "forward", False: "backward"}
    texts = [f"{names[side]} {counted_words(some)}" for side, some in found.items() if some]
    return [f"collectives of a micro-batch: {'; '.join(texts)}"] if texts else []


def counted_words(collectives: Iterable[Collective]) -> str:
    """`all_gather over tp and 2 x all_reduce over dp`."""
    found = Counter(f"{one.kind} over {one.axis.replace(FLAT, ', ')}" for one in collectives)
    return " and ".join(f"{count} x {what}" if count > 1 else what for what, count in found.items())


def totals(program: Program, plan: Plan) -> list[str]:
    """All collectives of a step, as the plan of one stage lists them."""
    if not plan.predicted.collectives:
        return []
    lines = [f"collectives of one step: {counted_words(plan.predicted.collectives)}"]
    weights = counted_words(parameter_collectives(plan, program))
    return [*lines, f"  of weights and their gradients: {weights}"] if weights else lines
