"""Joint graphs as a device runs them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from meshwright.capture.program import SegmentGraph
from meshwright.cluster import Device
from meshwright.generate.joint import Joint, trace
from meshwright.generate.strides import lies_last

Tracer = Callable[[SegmentGraph], Joint]


def traced_for(device: Device) -> Tracer:
    """Its own graphs where it is here, else on fakes with its kind's kernels."""
    if device.kind != "cuda":
        return lambda graph: trace(graph)
    if torch.cuda.is_available():
        return lambda graph: trace(graph, "cuda", images=lies_last(graph))
    return lambda graph: trace(graph, "cpu", "cuda", lies_last(graph))
