"""Profiling a training step: the chain's segments, what lies beside them, and the worst moment of all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import prod

from meshwright.capture.program import Program
from meshwright.errors import ModelError
from meshwright.profile.chain import Chain, Link, walk
from meshwright.profile.operands import type_bytes
from meshwright.profile.profile import PHASES, Peak, Phase, Profile, SegmentProfile
from meshwright.profile.saved import DeviceKind
from meshwright.profile.static import Implementation, Optimizer, Precision, Static, rounding, static


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
    chosen = _precision(program, precision)
    if device not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r}", "cpu or cuda", "name one of these")
    around = rounding(device)
    chain = walk(program, device, around)
    held = static(
        program.parameters,
        program.buffers,
        optimizer=optimizer,
        precision=chosen,
        device=device,
        implementation=implementation,
    )
    batch_bytes = sum(around(type_bytes(value.type.at(program.batch))) for value in program.inputs)
    saved_bytes = chain.prologue.live.saved_bytes + sum(link.live.saved_bytes for link in chain.links)
    widened = 2 if chosen == "mixed" else 1
    moments = tuple(_moments(chain, held, batch_bytes, widened))
    peak = max(moments, key=lambda moment: moment.bytes)
    return Profile(
        batch=program.batch,
        device=device,
        precision=chosen,
        optimizer=optimizer,
        implementation=implementation,
        params=sum(prod(parameter.type.at(1).sizes) for parameter in program.parameters),
        static=held,
        batch_bytes=batch_bytes,
        prologue=_segment(chain.prologue, 1),
        segments=_rows(program, chain),
        distinct_segments=len(program.graphs),
        saved_bytes=saved_bytes,
        peak=peak,
        phase_peaks=tuple(_worst(moments, phase) for phase in PHASES),
        profile_seconds=time.process_time() - start,
    )


def _precision(program: Program, wanted: Precision | None) -> Precision:
    dtypes = {parameter.type.dtype for parameter in program.parameters if parameter.type.is_float}
    half = "bfloat16" in dtypes
    found: Precision = "bf16" if half else "fp32"
    if wanted is None or wanted == found or (wanted == "mixed" and half):
        return wanted or found
    if wanted not in ("fp32", "bf16", "mixed"):
        raise ModelError(f"precision {wanted!r}", "fp32, bf16 or mixed", "name one of these")
    raise ModelError(
        f"precision {wanted} of a Program whose parameters are {', '.join(sorted(dtypes))}",
        "a Program captured in the dtype it computes in",
        "capture model.to(torch.bfloat16)" if not half else "capture the model in float32",
    )


def _rows(program: Program, chain: Chain) -> tuple[SegmentProfile, ...]:
    """Segments of one graph whose surroundings are alike are one row."""
    found: dict[object, tuple[Link, int]] = {}
    for segment, link in zip(program.segments, chain.links, strict=True):
        key = (segment.graph, link.live)
        first, count = found.get(key, (link, 0))
        found[key] = (first, count + 1)
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


def _moments(chain: Chain, held: Static, batch_bytes: int, widened: int) -> Iterator[Peak]:
    """The worst moment of every segment's forward and backward, and the optimizer's."""
    n = len(chain.links)
    forward, backward = _passing(chain, n)
    before = [chain.prologue.live.saved_bytes]
    for link in chain.links:
        before.append(before[-1] + link.live.saved_bytes)
    gradient_bytes = 0
    for index, link in enumerate(chain.links):
        transient = link.live.forward_peak_bytes + forward[index]
        yield _peak(held, batch_bytes, "forward", link.name, link.live.forward_at, before[index], transient, 0)
    for index in reversed(range(n)):
        link = chain.links[index]
        transient = link.live.backward_peak_bytes + backward[index]
        yield _peak(
            held, batch_bytes, "backward", link.name, link.live.backward_at, before[index], transient, gradient_bytes
        )
        gradient_bytes += widened * link.live.gradient_bytes
    yield _peak(held, batch_bytes, "optimizer", "", "", 0, held.optimizer_temporary_bytes, held.gradient_bytes)


def _worst(moments: Sequence[Peak], phase: Phase) -> Peak:
    return max((moment for moment in moments if moment.phase == phase), key=lambda moment: moment.bytes)


def _passing(chain: Chain, n: int) -> tuple[list[int], list[int]]:
    """Per segment, what crosses it: values that are not saved; gradients, less values that were released already."""
    forward, backward = [0] * n, [0] * n
    for (maker, _), use in chain.uses.items():
        first = min(use.readers, default=maker)
        for index in range(max(maker + 1, 0), n if maker < 0 else use.last):
            aside = index not in use.segments
            if not use.readers and (aside or maker < 0):
                forward[index] += use.bytes
            if use.gradient and aside:
                backward[index] += use.bytes
            if index < first:
                backward[index] -= use.bytes
    return forward, backward


def _peak(
    held: Static,
    batch_bytes: int,
    phase: Phase,
    segment: str,
    op: str,
    saved_bytes: int,
    transient_bytes: int,
    gradient_bytes: int,
) -> Peak:
    parts = {
        "parameters": held.parameter_bytes + held.compute_copy_bytes,
        "gradients": gradient_bytes,
        "optimizer state": held.optimizer_bytes,
        "saved values": saved_bytes,
        "transient": transient_bytes,
        "batch and buffers": batch_bytes + held.buffer_bytes,
        "workspaces": held.workspace_bytes,
    }
    return Peak(sum(parts.values()), phase, segment, op, tuple(parts.items()))
