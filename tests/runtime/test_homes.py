"""Gradients live where they lived in the step before, unless somebody still looks at those."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import Replicate

from meshwright.price.buckets import Bucket
from meshwright.runtime.buckets import Shape
from meshwright.runtime.homes import Homes
from meshwright.torch_compat import as_dtensor, bare_mesh

SHAPE = Shape(Bucket("all_reduce", "dp", 2, ("a", "b"), (-1, -1), 40), ((2, 3), (4,)))
CPU = torch.device("cpu")


def homes() -> tuple[Homes, dict[str, nn.Parameter]]:
    like = {
        name: as_dtensor(torch.zeros(sizes), bare_mesh(1), Replicate()) for name, sizes in (("a", (2, 3)), ("b", 4))
    }
    stored = {name: nn.Parameter(tensor) for name, tensor in like.items()}
    return Homes(stored, like), stored


def test_the_same_memory_serves_every_step() -> None:
    made, stored = homes()
    first = made.find(SHAPE, torch.float32, CPU)
    for name, gradient in first.gradients.items():
        stored[name].grad = gradient
    assert made.find(SHAPE, torch.float32, CPU) is not first  # summed up beside what is there
    made.end_step()
    for parameter in stored.values():
        parameter.grad = None
    assert made.find(SHAPE, torch.float32, CPU) is first
    assert made.find(SHAPE, torch.float32, CPU) is not first  # one micro-batch's is still under way


def test_a_gradient_that_somebody_kept_is_not_written_over() -> None:
    made, _ = homes()
    first = made.find(SHAPE, torch.float32, CPU)
    made.end_step()
    kept = first.gradients["b"].to_local()
    second = made.find(SHAPE, torch.float32, CPU)
    assert second is not first
    made.end_step()
    assert made.find(SHAPE, torch.float32, CPU) is second
    del kept
