"""Profiling a training step: the chain's segments, what lies around them, and the worst moment of all."""

from __future__ import annotations

import time
from typing import NamedTuple

from meshwright.capture.precision import WIDENED, Precision, compute_dtype, precisions_of
from meshwright.capture.program import FLOATS, Program
from meshwright.errors import ModelError, what_is
from meshwright.profile.chain import Chain, Link, walk
from meshwright.profile.operands import type_bytes
from meshwright.profile.profile import PHASES, Peak, Phase, Profile, SegmentProfile
from meshwright.profile.saved import DeviceKind
from meshwright.profile.shorten import Shortened, shorten
from meshwright.profile.static import Implementation, Optimizer, Static, rounding, static


def profile_step(
    program: Program,
    *,
    optimizer: Optimizer = "adamw",
    precision: Precision | None = None,
    device: DeviceKind = "cuda",
    implementation: Implementation = "foreach",
) -> Profile:
    """What one training step of `program` computes and needs. Allocates nothing.

    A Program has the dtypes it was captured with: `precision` is fp32 or bf16 accordingly, or `mixed` for a model
    captured in bf16 whose parameters, gradients and states are kept in fp32. Gradients are taken to be None before
    the step. `implementation`: the optimizer's; torch's own choice on a GPU is foreach.
    """
    start = time.process_time()
    _check_given(program)
    chosen = _precision(program, precision)
    if device not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r}", "cpu or cuda", "name one of these")
    around = rounding(device)
    short = shorten(program)
    chain = walk(short.program, device, around)
    held = static(
        program.parameters,
        program.buffers,
        optimizer=optimizer,
        precision=chosen,
        device=device,
        implementation=implementation,
    )
    batch_bytes = sum(around(type_bytes(value.type.at(program.batch))) for value in program.inputs)
    saved_bytes = sum(w * link.live.saved_bytes for link, w in zip(chain.links, short.weights, strict=True))
    widened = 2 if chosen in WIDENED else 1
    moments = _moments(chain, program, short, held, widened)
    worst = tuple(_peak(moments[phase], held, batch_bytes) for phase in PHASES)
    peak = max(worst, key=lambda moment: moment.bytes)
    return Profile(
        batch=program.batch,
        device=device,
        precision=chosen,
        optimizer=optimizer,
        implementation=implementation,
        params=held.params,
        static=held,
        batch_bytes=batch_bytes,
        prologue=_segment(chain.prologue, 1),
        segments=_rows(short, chain),
        distinct_segments=len(program.graphs),
        saved_bytes=chain.prologue.live.saved_bytes + saved_bytes,
        peak=peak,
        phase_peaks=worst,
        profile_seconds=time.process_time() - start,
    )


def _check_given(program: object) -> None:
    if not isinstance(program, Program):
        given = f"a profile of {what_is(program)}"
        raise ModelError(given, "a Program", "give what mw.capture(model, batch, loss) gives")


def _precision(program: Program, wanted: Precision | None) -> Precision:
    dtypes = {value.type.dtype for graph in program.graphs for value in graph.params} & FLOATS
    found = precisions_of(dtypes)
    if wanted is None or wanted in found:
        return wanted or found[0]
    compute_dtype(wanted)
    raise ModelError(
        f"precision {wanted} of a Program whose parameters are {', '.join(sorted(dtypes))}",
        "a Program captured in the dtype it computes in",
        f"capture it with precision={wanted!r}" if found == ("fp32",) else "capture the model in float32",
    )


def _rows(short: Shortened, chain: Chain) -> tuple[SegmentProfile, ...]:
    """Segments of one graph whose surroundings are alike are one row."""
    alike: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], Link] = {}
    for segment, link, weight in zip(short.program.segments, chain.links, short.weights, strict=True):
        key = (segment.graph, id(link.live))
        first.setdefault(key, link)
        alike[key] = alike.get(key, 0) + weight
    found: dict[object, tuple[Link, int]] = {}
    for (graph, _), link in first.items():
        kept, count = found.get((graph, link.live), (link, 0))
        found[graph, link.live] = (kept, count + alike[graph, id(link.live)])
    return tuple(_segment(link, count) for link, count in found.values())


def _segment(link: Link, count: int) -> SegmentProfile:
    facts, live = link.facts, link.live
    return SegmentProfile(
        name=link.name,
        count=count,
        ops=len(facts.graph.ops),
        forward_flops=facts.forward_flops,
        backward_flops=facts.backward_flops,
        forward_causal_flops=facts.forward_causal_flops,
        backward_causal_flops=facts.backward_causal_flops,
        forward_bytes=facts.forward_bytes,
        backward_bytes=facts.backward_bytes,
        saved=live.saved,
        forward_transient_bytes=live.forward_peak_bytes,
        backward_transient_bytes=live.backward_peak_bytes,
    )


class _Moment(NamedTuple):
    """What comes and goes, at the worst moment of one phase."""

    bytes: int
    phase: Phase
    segment: str = ""
    op: str = ""
    saved_bytes: int = 0
    gradient_bytes: int = 0


def _moments(chain: Chain, program: Program, short: Shortened, held: Static, widened: int) -> dict[Phase, _Moment]:
    """The worst moment of forward, of backward and of the optimizer."""
    forward, backward = _passing(chain, len(chain.links))
    total = held.gradient_bytes + held.optimizer_temporary_bytes
    worst: dict[Phase, _Moment] = {
        "forward": _Moment(-1, "forward"),
        "backward": _Moment(-1, "backward"),
        "optimizer": _Moment(total, "optimizer", gradient_bytes=held.gradient_bytes),
    }
    saved = chain.prologue.live.saved_bytes
    made = widened * sum(w * link.live.gradient_bytes for link, w in zip(chain.links, short.weights, strict=True))
    for index, link in enumerate(chain.links):
        live, first, weight = link.live, short.firsts[index], short.weights[index]
        made -= widened * weight * live.gradient_bytes
        for number in {0, weight - 1}:  # of segments that are alike, the first or the last is the worst
            before = saved + number * live.saved_bytes
            later = made + (weight - 1 - number) * widened * live.gradient_bytes
            name = program.segments[first + number].name
            moments = (
                _Moment(before + live.forward_peak_bytes + forward[index], "forward", name, live.forward_at, before),
                _Moment(
                    before + later + live.backward_peak_bytes + backward[index],
                    "backward", name, live.backward_at, before, later,
                ),
            )  # fmt: skip
            worst |= {moment.phase: moment for moment in moments if moment.bytes > worst[moment.phase].bytes}
        saved += weight * live.saved_bytes
    return worst


def _passing(chain: Chain, n: int) -> tuple[list[int], list[int]]:
    """Per segment, what crosses it: values that are not saved; gradients, less values that were released already."""
    forward, backward = [0] * n, [0] * n
    for (maker, _), use in chain.uses.items():
        first = maker if use.first_reader is None else use.first_reader
        for index in range(max(maker + 1, 0), n if maker < 0 else use.last):
            aside = index not in use.segments
            if not use.kept and (aside or maker < 0):
                forward[index] += use.bytes
            if use.gradient and aside:
                backward[index] += use.bytes
            if index < first:
                backward[index] -= use.bytes
    return forward, backward


def _peak(moment: _Moment, held: Static, batch_bytes: int) -> Peak:
    parts = {
        "parameters": held.parameter_bytes + held.compute_copy_bytes,
        "gradients": moment.gradient_bytes,
        "optimizer state": held.optimizer_bytes,
        "activations": moment.saved_bytes,
        "temporary buffers": moment.bytes - moment.saved_bytes - moment.gradient_bytes,
        "batch and buffers": batch_bytes + held.buffer_bytes,
        "workspaces": held.workspace_bytes,
    }
    return Peak(sum(parts.values()), moment.phase, moment.segment, moment.op, tuple(parts.items()))
