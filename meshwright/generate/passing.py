"""The forward of a pair that keeps nothing: what a segment hands on, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from meshwright.capture.program import SegmentGraph
from meshwright.cost.traced.storage import outputs_of
from meshwright.generate import rehearse
from meshwright.generate.boxed import Boxed, boxed
from meshwright.generate.pair import SegmentPair
from meshwright.generate.split import extract


@dataclass(frozen=True, slots=True)
class Passing:
    """Called like a pair's forward."""

    graph: SegmentGraph
    run: Boxed

    def forward(self, arguments: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """(outputs, buffers' new values)."""
        results = self.run([arguments[value.name] for value in self.graph.arguments()])
        outputs = len(self.graph.outputs)
        new = zip((buffer for buffer, _ in self.graph.updates), results[outputs:], strict=True)
        return list(results[:outputs]), dict(new)


def passing(pair: SegmentPair, compiled: bool = False) -> Passing:
    whole = pair.halves.first
    nodes = list(whole.graph.nodes)
    outputs = outputs_of(whole)[: len(pair.graph.outputs) + len(pair.graph.updates)]
    inputs = [node for node in nodes if node.op == "placeholder"]
    inside = [node for node in nodes if node.op == "call_function"]
    alone = extract(whole, inputs, inside, outputs)
    return Passing(pair.graph, rehearse.compiled(alone) if compiled else boxed(alone))
