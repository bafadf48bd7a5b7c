"""What a compiled half is handed has the strides it was traced with, and what it hands on lies in rows.

A segment is traced on arguments in rows, whatever hands them over; a compiled half reads memory as it was traced. A
value that crosses a boundary turned (a bias whose heads were moved to the front) is copied once, where it is made.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from meshwright.generate.boxed import Boxed


def as_traced(run: Boxed, module: fx.GraphModule, handed_on: int) -> Boxed:
    """`run`: the module, compiled. handed_on: how many of its first results other segments read."""
    strides = [node.meta["val"].stride() for node in module.graph.nodes if node.op == "placeholder"]

    def call(box: list[Tensor]) -> tuple[Any, ...]:
        for index, stride in enumerate(strides):
            if box[index].stride() != stride and not _same(box[index], stride):
                box[index] = _copied(box[index], stride)
        results = list(run(box))
        for index in range(handed_on):
            if results[index] is not None and not results[index].is_contiguous():
                results[index] = results[index].contiguous()
        return tuple(results)

    return call


def _same(tensor: Tensor, stride: tuple[int, ...]) -> bool:
    """Strides of dims of one element say nothing."""
    dims = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return tensor.numel() == 0 or all(size == 1 or own == other for size, own, other in dims)


def _copied(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    return tensor.new_empty_strided(tuple(tensor.shape), stride).copy_(tensor)
