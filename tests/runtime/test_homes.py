"""Gradients live where they lived in the step before, unless somebody still looks at those."""

from __future__ import annotations

import torch
from torch import nn

from meshwright.price.buckets import Bucket
from meshwright.runtime.weights.buckets import Shape
from meshwright.runtime.weights.homes import Homes

SHAPE = Shape(Bucket("all_reduce", "dp", 2, ("a", "b"), (-1, -1), 40), ((2, 3), (4,)))
CPU = torch.device("cpu")


def homes() -> tuple[Homes, dict[str, nn.Parameter]]:
    stored = {"a": nn.Parameter(torch.zeros(2, 3)), "b": nn.Parameter(torch.zeros(4))}
    return Homes(stored), stored


def test_the_same_memory_serves_every_step() -> None:
    made, stored = homes()
    first = made.find(SHAPE, torch.float32, CPU)
    for name in SHAPE.bucket.names:
        stored[name].grad = first.gradients()[name]
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
    kept = first.gradients()["b"]
    second = made.find(SHAPE, torch.float32, CPU)
    assert second is not first
    made.end_step()
    assert made.find(SHAPE, torch.float32, CPU) is second
    del kept
