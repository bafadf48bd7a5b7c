"""The layers of GPipe's models as `gpipe_tables` deals them to partitions, and the device that runs them.

Layers are captured and profiled as anything else is. What the paper leaves open was chosen with its tables in view
(docs/pipelines.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import ceil


@dataclass(frozen=True)
class Device:
    """What runs a layer: FLOP/s that matmuls and convolutions reach, and bytes per second. lanes: what works side by
    side on channels or, where these fill fewer, on samples."""

    matmul: float
    convolution: float
    bandwidth: float
    lanes: int

    def filled(self, channels: float, samples: int) -> float:
        """The share of the lanes that has work."""
        return max(count / (ceil(count / self.lanes) * self.lanes) for count in (channels, samples))


DEVICE = Device(61.5e12 * 0.4, 61.5e12 * 0.1, 450e9 * 0.9, lanes=128)  # a core of a TPU v3 chip
OVERHEAD_S = 0.55e-3  # of a Transformer layer's forward, whatever its size
CELL_OVERHEAD_S = 0.01e-3  # of a cell's, whose many small ops a compiler fuses
KEPT_SCORES = 9  # bytes an attention score leaves for backward: its probability, the mask's, the dropped one
CELL_BYTES = 0.5  # of what is captured in float32: a cell's values are in bfloat16
BRANCHES = 4  # what an AmoebaNet cell leaves has the channels of so many ops


@dataclass(frozen=True)
class Layer:
    """Figures of one sample, parameters aside. kept: what backward reads. leaves: the boundary after it."""

    parameters: float
    forward_flops: float
    backward_flops: float
    kept_bytes: float
    leaves_bytes: float
    rate: float = DEVICE.matmul
    channels: float = DEVICE.lanes
    overhead_s: float = OVERHEAD_S

    def wider(self, by: float) -> Layer:
        """The same layer with so many times the channels."""
        return replace(
            self,
            parameters=self.parameters * by**2,
            forward_flops=self.forward_flops * by**2,
            backward_flops=self.backward_flops * by**2,
            kept_bytes=self.kept_bytes * by,
            leaves_bytes=self.leaves_bytes * by,
            channels=self.channels * by,
        )

    def seconds(self, samples: int) -> tuple[float, float]:
        """Forward and backward."""
        rate = self.rate * DEVICE.filled(self.channels, samples)
        read_s = 4 * self.parameters / DEVICE.bandwidth + self.overhead_s
        return samples * self.forward_flops / rate + read_s, samples * self.backward_flops / rate + 2 * read_s


@cache
def captured(reference: str) -> tuple[Layer, ...]:
    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference
    from meshwright.profile.chain import walk
    from meshwright.profile.static import rounding

    program = capture(*parse_reference(reference).meta(1))
    chain = walk(program, "cuda", rounding("cuda"))
    sizes = {parameter.name: _count(parameter.type.sizes) for parameter in program.parameters}
    kept = [0.0] * len(program.segments)
    for link, place in zip(chain.links, range(len(kept)), strict=True):
        kept[place] = link.live.saved_bytes
    found = []
    alive: dict[str, int] = {}
    last = {name: i for i, segment in enumerate(program.segments) for name in segment.inputs}
    for i, (segment, link) in enumerate(zip(program.segments, chain.links, strict=True)):
        values = program.graph(segment).at(1).values()
        for name, local in zip(segment.outputs, program.graph(segment).outputs, strict=True):
            alive[name] = 4 * _count(values[local].type.sizes)
        crossing = sum(size for name, size in alive.items() if last.get(name, -1) > i)
        own = sum(sizes.pop(name, 0) for name in segment.params)
        layer = Layer(own, link.facts.forward_flops, link.facts.backward_flops, kept[i], crossing)
        made = values[program.graph(segment).outputs[-1]].type.sizes
        found.append(replace(layer, channels=made[1] / BRANCHES) if len(made) == 4 else layer)
    return tuple(found)


def _count(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def transformer(layers: int, hidden: int, ffn: int, heads: int) -> tuple[Layer, ...]:
    """Sequences of 1024, a vocabulary of 32k; attention as it was then, with scores, probabilities and a mask kept."""
    sizes = f"hidden={hidden}&heads={heads}&ffn={ffn}&vocab=32000&seq=1024&tied=false"
    found = list(captured(f"gpt?layers=4&{sizes}"))
    unit = next(i for i, (a, b) in enumerate(pairwise(found)) if a == b)
    count = sum(layer == found[unit] for layer in found)
    square = KEPT_SCORES * heads * 1024**2
    own = found[unit]
    wide = Layer(own.parameters, own.forward_flops, own.backward_flops, own.kept_bytes + square, own.leaves_bytes)
    return (*found[:unit], *[wide] * layers, *found[unit + count :])


def translator(layers: int, hidden: int, ffn: int, heads: int) -> tuple[Layer, ...]:
    """An encoder and a decoder of half the layers each: a decoder layer attends a second time, to what was encoded."""
    plain = transformer(layers, hidden, ffn, heads)
    middle = len(plain) // 2
    own, seq = plain[middle], 1024
    flops = 8 * hidden**2 * seq + 4 * seq**2 * hidden
    kept = own.kept_bytes + KEPT_SCORES * heads * seq**2 + 4 * 5 * hidden * seq
    leaves = own.leaves_bytes + 4 * hidden * seq
    decoder = Layer(
        own.parameters + 4 * hidden**2, own.forward_flops + flops, own.backward_flops + 2 * flops, kept, leaves
    )
    return tuple(decoder if i >= middle and layer == own else layer for i, layer in enumerate(plain))


def amoebanet(layers: int, filters: float) -> tuple[Layer, ...]:
    """AmoebaNet-D(layers, filters): a width of 0.574 of its filters gives the published number of parameters."""
    found = []
    for layer in _apart(captured(f"amoebanet?layers={layers}&width=120")):
        cell = replace(
            layer,
            kept_bytes=CELL_BYTES * layer.kept_bytes,
            leaves_bytes=CELL_BYTES * layer.leaves_bytes,
            rate=DEVICE.convolution,
            overhead_s=CELL_OVERHEAD_S,
        )
        found.append(cell.wider(filters * 0.574 / 120))
    return tuple(found)


def _apart(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The first two cells, which are captured as one: the first has half the channels at twice the resolution."""
    stem, both, *others = layers
    half = replace(both, forward_flops=both.forward_flops / 2, backward_flops=both.backward_flops / 2)
    first = replace(
        half,
        parameters=both.parameters / 5,
        kept_bytes=both.kept_bytes * 2 / 3,
        leaves_bytes=both.leaves_bytes * 4 / 3,
        channels=both.channels / 2,
    )
    second = replace(half, parameters=both.parameters * 4 / 5, kept_bytes=both.kept_bytes / 3)
    return stem, first, second, *others
