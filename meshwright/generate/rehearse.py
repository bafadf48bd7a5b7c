"""A compiled graph, run once before it counts.

A compiler tries several kernels when a graph first runs and copies what they write: memory that no plan has. On a GPU
the graph therefore runs once on zeros as soon as it is compiled, while neither optimizer nor other segments hold any.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from meshwright.generate.boxed import Boxed
from meshwright.torch_compat import compile_boxed


def compiled(module: fx.GraphModule, images: bool = False) -> Boxed:
    """The traced module, compiled and, on a GPU, tuned. `images`: what it convolves lies channels last."""
    run = compile_boxed(module, images)
    if _is_on_gpu(module) and is_alone(module):
        run(zeros(module))
        torch.cuda.empty_cache()
    return run


def zeros(module: fx.GraphModule) -> list[Tensor]:
    """Arguments as they were traced. Indices are zero too, so they are inside whatever they index."""
    found = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    return [
        torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device).zero_()
        for value in found
    ]


def is_alone(module: fx.GraphModule) -> bool:
    """Whether it runs without other ranks, and its sizes are known."""
    for node in module.graph.nodes:
        if node.op == "call_function" and str(node.target).startswith(("meshwright.", "_c10d_functional.")):
            return False
        value = node.meta.get("val")
        if node.op == "placeholder" and not isinstance(value, Tensor):
            return False
        if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            return False
    return True


def _is_on_gpu(module: fx.GraphModule) -> bool:
    first = next(node for node in module.graph.nodes if node.op == "placeholder")
    return isinstance(first.meta["val"], Tensor) and bool(first.meta["val"].device.type == "cuda")
