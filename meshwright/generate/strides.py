"""What a segment is handed has the strides it was traced with, and what it hands on lies in rows.

A segment is traced on arguments in rows. A value that would cross a boundary turned (patches whose channels were moved
to the back, a bias whose heads were moved to the front) is copied once, where it is made, not by every op that reads
it. A GPU convolves images faster that lie channels last: segments with convolutions are traced with, and hand on,
images that lie so. A compiled half reads memory as it was traced: what still lies otherwise is copied before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from meshwright.capture.program import SegmentGraph
from meshwright.generate.boxed import Boxed
from meshwright.profile.count import CONVOLUTIONS
from meshwright.profile.operands import packet


def holds_images(graph: SegmentGraph) -> bool:
    """Whether it convolves images, each time over all channels at once; or does nothing but what is done to images
    between convolutions."""
    shapes = _convolved(graph)
    if shapes:
        return all(len(image) == 4 and image[1] == weight[1] for image, weight in shapes)
    touched = [*graph.inputs, *(value for op in graph.ops for value in op.results)]
    return bool(graph.inputs) and all(len(value.type.shape) == 4 for value in touched if value.type.is_float)


def lies_last(graph: SegmentGraph) -> bool:
    """Whether a GPU runs it eagerly on images that lie channels last: those of half precision, whose kernels all want
    them so. In float32 channels that are convolved one by one take twice as long so (backward, one H200)."""
    made = [value for op in graph.ops for value in op.results]
    floats = [value.type.itemsize for value in (*graph.inputs, *made) if value.type.is_float]
    if not floats or min(floats) != 2:
        return False
    shapes = _convolved(graph)
    alone = bool(shapes) and all(len(image) == 4 and weight[1] in (1, image[1]) for image, weight in shapes)
    return alone or holds_images(graph)


def _convolved(graph: SegmentGraph) -> list[list[tuple[object, ...]]]:
    """Shapes of images and weights."""
    values = graph.values()
    found = [op for op in graph.ops if packet(op.target) in CONVOLUTIONS]
    return [[values[name].type.shape for name in op.operands()[:2]] for op in found]


def in_order(tensor: Tensor, images: bool) -> Tensor:
    return tensor.contiguous(memory_format=memory_format(tensor.dim(), images))


def unturned(tensor: Tensor) -> Tensor:
    """In rows, but for what is repeated, which stays small."""
    return tensor if 0 in tensor.stride() else tensor.contiguous()


def memory_format(dims: int, images: bool) -> torch.memory_format:
    return torch.channels_last if images and dims == 4 else torch.contiguous_format


def as_traced(run: Boxed, module: fx.GraphModule, handed_on: int, images: bool = False) -> Boxed:
    """`run`: the module, compiled. handed_on: how many of its first results other segments read."""
    strides = [node.meta["val"].stride() for node in module.graph.nodes if node.op == "placeholder"]

    def call(box: list[Tensor]) -> tuple[Any, ...]:
        for index, stride in enumerate(strides):
            if box[index].stride() != stride and not _same(box[index], stride):
                box[index] = box[index].new_empty_strided(tuple(box[index].shape), stride).copy_(box[index])
        results = list(run(box))
        for index in range(handed_on):
            if results[index] is not None:
                results[index] = in_order(results[index], images)
        return tuple(results)

    return call


def with_images(run: Boxed, module: fx.GraphModule) -> Boxed:
    """`run`: the first half of a pair that was traced on images which lie channels last. Those of a batch lie in rows:
    left so, convolutions would hand on turned what they were traced to hand on in rows."""
    given = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    lasts = [index for index, value in enumerate(given) if is_last(value)]

    def call(box: list[Tensor]) -> tuple[Any, ...]:
        for index in lasts:
            box[index] = in_order(box[index], images=True)
        return run(box)

    return call if lasts else run


def is_last(tensor: Tensor) -> bool:
    """Whether it lies channels last, and not in rows as well."""
    images = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return images and not tensor.is_contiguous()


def _same(tensor: Tensor, stride: tuple[int, ...]) -> bool:
    """Strides of dims of one element say nothing."""
    dims = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return tensor.numel() == 0 or all(size == 1 or own == other for size, own, other in dims)
