"""Tracers of joint graphs for a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from meshwright.capture.program import SegmentGraph
from meshwright.cluster import Device
from meshwright.generate.joint import Joint, trace
from meshwright.generate.strides import lies_last

Tracer = Callable[[SegmentGraph], Joint]


def traced_for(device: Device) -> Tracer:
    """A tracer on the device itself where it is present, else on fake tensors with kernels of its kind."""
    if device.kind != "cuda":
        return lambda graph: trace(graph)
    if torch.cuda.is_available():
        return lambda graph: trace(graph, "cuda", images=lies_last(graph))
    return lambda graph: trace(graph, "cpu", "cuda", lies_last(graph))
