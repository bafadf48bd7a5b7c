"""The host's seconds of asking for ops: as eager PyTorch does, and as segment pairs do.

Eager PyTorch keeps what backward needs as it goes. A segment pair calls plain kernels one after the other, more of them
(a linear layer's backward is a dozen), and no autograd. All figures are of a host at its usual pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.cluster.calibrate.eager import DEEP, KINDS, LAYERS, LEAST, MIXTURE, PLAIN, Kind, phases
from meshwright.cluster.calibrate.pace import Pace, Reference
from meshwright.cluster.calibrate.samples import HOST, KERNELS, Make, Sample
from meshwright.cluster.calibrate.tape import tape_figures
from meshwright.torch_compat import trace_joint

TRACED = 4
"""Calls side by side: what is paid once hardly counts then."""
TAPED = frozenset({"dispatch", "bias"})
"""What segment pairs have as ops of their own, or as part of others."""
Tables = dict[str, list[float]]


def eager_table(device: torch.device, dtype: torch.dtype, pace: Pace) -> tuple[Tables, list[float]]:
    """Forward and backward of each op; by how much a step of a model with layers of several kinds takes longer or
    shorter than the sum of its ops (`eager`); what a step takes once (`start`). And AdamW in the midst of a step: once,
    and for each tensor."""
    found = tape_figures(device, dtype, pace)
    least = pace.paced(phases(LEAST, 1, device, dtype), 9)
    steps = [_both(kind, pace, device, dtype) for kind in KINDS]
    whole, parts = pace.paced(Reference(device, dtype, 2 * LAYERS).phases, 21), _parts(found, LEAST)
    layers = [_parts(found, kind) for kind in KINDS]
    factors, images = _factors(layers, [_layer(pair) for pair in steps], least, whole, parts)
    _scale_flat(found, factors, _layer(_both(PLAIN, pace, device, dtype)))
    _scale_mixture(found, factors, _experts(pace, device, dtype), dtype != torch.float32)
    found["start"] = [max(0.0, least[side] - factors[side] * parts[side]) for side in (0, 1)]
    counts = [LEAST.tensors, *(kind.tensors * n for kind in KINDS for n in (LAYERS, DEEP))]
    optimizer = _line(counts, [least[2], *(took[2] for pair in steps for took in pair)])
    tensors = 2 * LAYERS * sum(kind.tensors for kind in KINDS)
    scale = whole[2] / (optimizer[0] + optimizer[1] * tensors)
    optimizer = [scale * figure for figure in optimizer]
    return _seconds(found, pace, [*factors, *images]), [pace.usual_s * figure for figure in optimizer]


def _both(kind: Kind, pace: Pace, device: torch.device, dtype: torch.dtype) -> list[list[float]]:
    """Steps of a model with few and with many layers of a kind."""
    return [pace.paced(phases(kind, n, device, dtype), 5) for n in (LAYERS, DEEP)]


def _layer(steps: Sequence[Sequence[float]]) -> list[float]:
    """Forward and backward of one layer, of what both numbers of layers take."""
    few, many = steps
    return [(many[side] - few[side]) / (DEEP - LAYERS) for side in (0, 1)]


def _experts(pace: Pace, device: torch.device, dtype: torch.dtype) -> list[float]:
    """Forward and backward of what a mixture adds to a layer: models with and without it, one right after the other."""
    without, mixed = (phases(kind, DEEP, device, dtype) for kind in (KINDS[0], MIXTURE))
    more = pace.paced(lambda: [b - a for a, b in zip(without()[:2], mixed()[:2], strict=True)], 9)
    return [max(0.0, side) / DEEP for side in more]


def _scale_flat(table: Tables, factors: Sequence[float], layer: Sequence[float]) -> None:
    """What a linear layer of rows takes in a perceptron, by what a layer of one takes: next to nothing else is asked
    for there, and the host has all of it at hand."""
    besides = _parts(table, replace(PLAIN, ops={**PLAIN.ops, "linear_flat": 0}))
    for side, factor in enumerate(factors):
        own = factor * table["linear_flat"][side]
        table["linear_flat"][side] *= min(1.2, max(0.5, (layer[side] - factor * besides[side]) / own))


def _scale_mixture(table: Tables, factors: Sequence[float], more: Sequence[float], casts: bool) -> None:
    """What a mixture's own ops take in a layer, by how much longer that one takes than one without (`more`): they are
    many calls each, and in a loop of their own they take less. `casts`: its router computes in another dtype."""
    names = [name for name in table if name.startswith(("dispatch", "grouped_mm"))]
    if not {"dispatch", "grouped_mm_4", "grouped_mm_16"} <= set(names):
        return
    besides = _parts(table, MIXTURE if casts else replace(MIXTURE, ops={**MIXTURE.ops, "cast": 0}))
    for side, factor in enumerate(factors):
        few, many = table["grouped_mm_4"][side], table["grouped_mm_16"][side]
        own = table["dispatch"][side] + 2 * (few + (many - few) / 3)
        ratio = min(2.0, max(0.8, (more[side] - factor * besides[side]) / (factor * own)))
        for name in names:
            table[name][side] *= ratio


def _factors(
    layers: Sequence[Sequence[float]],
    seen: Sequence[Sequence[float]],
    least: Sequence[float],
    whole: Sequence[float],
    parts: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Forward and backward: what steps take over the sum of their ops, of transformers and of models of images. Layers
    of each kind tell how the two differ, a model with both (`whole`) how much it is. layers: what a layer's ops add up
    to; seen: what it took; least, parts: of a model with next to nothing."""
    found: list[list[float]] = [[], []]
    for side in (0, 1):
        ratios = [took[side] / own[side] for took, own in zip(seen, layers, strict=True)]
        ops = sum(ratio * own[side] for ratio, own in zip(ratios, layers, strict=True))
        both = parts[side] + 2 * LAYERS * sum(own[side] for own in layers)
        once = max(0.0, least[side] - whole[side] / both * parts[side])
        scale = (whole[side] - once) / (ratios[0] * parts[side] + 2 * LAYERS * ops)
        for kind, ratio in zip(found, ratios, strict=True):
            kind.append(max(0.25, scale * ratio))
    rows, images = found
    # One layer of a kind is little to go by: models of images lie between what theirs says and what transformers do.
    return rows, [(own * other) ** 0.5 for own, other in zip(images, rows, strict=True)]


def _parts(host: Mapping[str, list[float]], kind: Kind) -> list[float]:
    """What the ops of a block add up to, forward and backward; gradients of values that are read twice are summed."""
    known = {name: n for name, n in kind.ops.items() if name in host}
    forward = sum(n * host[name][0] for name, n in known.items())
    # A count of batches, which BatchNorm keeps, has no gradient.
    backward = sum(n * host[name][1] for name, n in known.items() if name != "scaled")
    return [forward, backward + kind.sums * host.get("summed", [0.0, 0.0])[1]]


def _line(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """Where it begins and how it rises: least squares, neither below zero."""
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    across = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    rise = max(0.0, across / sum((x - middle_x) ** 2 for x in xs))
    return [max(0.0, middle_y - rise * middle_x), rise]


def pair_table(device: torch.device, dtype: torch.dtype, pace: Pace) -> Tables:
    """The same of ops as plain kernels. Dtypes hardly differ."""
    found = _ops(pace, lambda make: _pair_measures(make, dtype, device))
    found = {name: [forward, max(0.0, both - forward)] for name, (forward, both) in found.items()}
    return _seconds(found, pace, _pair_factors(device, dtype, pace, found))


def _seconds(table: Tables, pace: Pace, factors: list[float]) -> Tables:
    """From units of a step at the host's pace to seconds at its usual one."""
    found = {name: [pace.usual_s * figure for figure in figures] for name, figures in table.items()} | {
        "eager": factors
    }
    return {name: [float(f"{figure:.4g}") for figure in figures] for name, figures in found.items()}


def _ops(pace: Pace, measures: Callable[[Make], list[Callable[[], float]]]) -> Tables:
    found: Tables = {}
    for name, make in {**KERNELS, **HOST}.items():
        if name in TAPED:
            continue
        try:
            found[name] = _figures(pace, measures(make))
        except (RuntimeError, NotImplementedError):  # what the device cannot run
            found[name] = [0.0, 0.0]
    return found


def _figures(pace: Pace, measures: list[Callable[[], float]]) -> list[float]:
    return pace.paced(lambda: [measure() for measure in measures])


def _pair_measures(make: Make, dtype: torch.dtype, device: torch.device) -> list[Callable[[], float]]:
    """Forward, and forward and backward together."""
    runs = pair_calls([make(1 << 12, dtype, device) for _ in range(TRACED)])
    return [_timed(device, run, TRACED, 20, plain=True) for run in runs]


def pair_calls(samples: Sequence[Sample]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward of all samples, and forward and backward of all, as plain kernels one after the other."""
    wrt = [tensor for sample in samples for tensor in sample.wrt]
    gradients = [torch.ones_like(sample.call()) for sample in samples]

    def forward() -> list[Tensor]:
        return [sample.call() for sample in samples]

    def both() -> list[Tensor | None]:
        results = forward()
        return [*results, *torch.autograd.grad(results, wrt, gradients, allow_unused=True)]

    with torch.autograd.set_multithreading_enabled(False):
        first = trace_joint(forward, [], nullcontext())
        return first, trace_joint(both, [], nullcontext()) if wrt else first


def _timed(
    device: torch.device, run: Callable[[], Any], calls: int, repeats: int = 6, plain: bool = False
) -> Callable[[], float]:
    """Seconds of one of the calls that `run` makes; `plain`: without autograd."""

    def measure() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        with torch.set_grad_enabled(not plain):
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            return (time.perf_counter() - start) / (repeats * calls)

    measure()
    return measure


def _pair_factors(device: torch.device, dtype: torch.dtype, pace: Pace, host: Mapping[str, list[float]]) -> list[float]:
    """Likewise of whole segments as plain kernels."""
    layers = []
    for kind in KINDS:
        model = nn.Sequential(*(kind.block() for _ in range(LAYERS))).to(device=device, dtype=dtype)
        x = torch.randn(kind.shape, device=device).to(dtype).requires_grad_()
        runs = pair_calls([Sample(0, partial(model, x), (x, *model.parameters()))])
        timed = [_timed(device, run, LAYERS, 4, plain=True) for run in runs]
        forward, both = pace.paced(lambda timed=timed: [measure() for measure in timed], 5)  # type: ignore[misc]
        layers.append([forward, both - forward])
    parts = [_parts(host, kind) for kind in KINDS]
    ratios = [[layer[side] / own[side] for layer, own in zip(layers, parts, strict=True)] for side in (0, 1)]
    factors = [max(0.25, sum(both) / len(both)) for both in ratios]
    return [*factors, *factors]
