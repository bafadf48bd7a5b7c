"""What PyTorch's allocator has reserved on a rank, beyond the bytes that are in use at the peak.

Four causes: blocks that a stream of collectives has used wait until the device has run it (`waiting_bytes`); each
stream has a pool of its own; blocks of one layer are too small for the logits, so that these are new memory
(`pooled_bytes`); and cuBLAS works in memory of the same allocator (`workspace_bytes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.capture.program import ITEM_BYTES
from meshwright.configuration.costs import HOPPER

if TYPE_CHECKING:
    from meshwright.cluster import Device
    from meshwright.configuration.step import Step

QUEUE = 1024
"""Launches that a device takes before its host has to wait."""
COLLECTIVE_LAUNCHES = 3
"""A collective is a kernel and two waits between streams."""
WHOLE = 4
"""Whole operands of collectives in a layer under sequence parallelism: two of its forward, two of its backward."""
HOSTS_AHEAD = 2
"""Hosts of a tensor-parallel group whose stages run ahead; of more, all pipelines of the sweep that shows it stall."""

HANDLES = 2
"""Of cuBLAS: forward and backward run in threads of their own."""


def workspace_bytes(device: Device) -> int:
    """What cuBLAS works in: 32 MiB a handle on Hopper, 8.125 MiB on others (`aten/src/ATen/cuda/CublasHandlePool.cpp`
    of PyTorch 2.1 to 2.6)."""
    return HANDLES * (32 * 2**20 if device.name.startswith(HOPPER) else 8_519_680)


def whole_bytes(step: Step) -> int:
    """Of the hidden states of all tensor-parallel ranks."""
    return step.layers.tokens * step.model.hidden * step.layers.size


def waiting_bytes(step: Step) -> int:
    """What waits on the first stage for collectives that the host has asked for already: their whole operands. They are
    unused, but the allocator may not hand them out: it asks for more memory while there is any.

    One stage: those of as many layers as the device's queue takes, or of half of them where there is one micro-batch.
    A pipeline: two of each forward before the first backward (the warm-up) where another stage has as many layers as
    the first, which waits for it. Elsewhere, where products take longer than the host, its lead grows with what it
    asks for, until the queue is full.
    """
    given = step.given
    if not given.recorded or given.tp == 1:
        return 0
    if given.pp == 1:
        queued = _queued(step) if given.microbatches > 1 else WHOLE * step.model.layers / 2
        return round(queued * whole_bytes(step))
    first = step.run_layers[0]
    behind = 2 * first if given.pp > 2 and _near(step) else 0
    return round(max(WHOLE, behind, _ahead(step)) * whole_bytes(step))


def _queued(step: Step) -> float:
    """Operands of as many layers as the device's queue takes."""
    cost = step.blocks[step.layer_name]
    return WHOLE * QUEUE / (3 * cost.ops + COLLECTIVE_LAUNCHES * len(cost.moved) + cost.parameters)


def _near(step: Step) -> bool:
    return step.meshes.hosts_of_axis("tp") <= HOSTS_AHEAD


def _ahead(step: Step) -> float:
    """Operands of the first stage of a pipeline."""
    given, (first, *others) = step.given, step.run_layers
    if not _near(step):
        return 0.0
    warm_up = 2 * first * min(given.pp, given.microbatches)
    if max(others) >= first or not step.meshes.between_hosts:
        return warm_up
    point = step.point(step.layer_name, given.recompute)
    host_s = step.stalled(point.forward_host_s + point.backward_host_s)
    lead = 1.0 - host_s / (point.forward_s + point.backward_input_s + point.backward_weight_s)
    asked = warm_up + WHOLE * first * max(0, given.microbatches - given.pp)
    return min(_queued(step), max(0.0, lead) * asked)


def pooled_bytes(step: Step) -> int:
    """Of FSDP with streams of its own for gathers and reductions, on the rank that has the loss: the outermost group
    of parameters (embedding and head) and the last layer stay gathered; both streams keep room for the largest group.
    The freed blocks of a layer's forward are smaller than logits. Stages keep the logits of all micro-batches."""
    given, layer = step.given, step.blocks[step.layer_name]
    size, ranks = step.layers.size, step.meshes.data.axes[0].size
    outer = step.blocks["head"].weights + (step.blocks["embedding"].weights if given.pp == 1 else 0)
    largest = max(outer, layer.weights)
    stay = (outer + layer.weights) * size if given.zero == 3 else 0
    streams = largest * (size + ITEM_BYTES[given.reduce]) * (ranks + 1) // ranks if ranks > 1 else 0
    holes = layer.working_bytes + (WHOLE * whole_bytes(step) if given.tp > 1 else 0)
    logits = step.layers.tokens * -(-step.model.vocab // given.tp) * size
    return stay + streams + holes + (logits * given.microbatches if given.pp > 1 else 0)
