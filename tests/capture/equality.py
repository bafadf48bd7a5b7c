"""Running a Program beside the model it was captured from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.capture.execute import run
from meshwright.capture.program import Program


def assert_runs_like(
    program: Program, model: nn.Module, batch: dict[str, Tensor], *, tolerance: float = 0.0, seed: int = 1
) -> None:
    """Loss bit-equal, gradients within `tolerance` of the largest element, buffers equal after the step."""
    tensors = dict(model.named_parameters()) | {key: value.clone() for key, value in model.named_buffers()}
    torch.manual_seed(seed)
    found, buffers = run(program, tensors, batch, torch.device("cpu"))
    names = [p.name for p in program.parameters if p.trainable]
    gradients = torch.autograd.grad(found, [tensors[name] for name in names])
    torch.manual_seed(seed)
    output = model(**batch)
    loss = getattr(output, "loss", output)
    assert torch.equal(found, loss)
    true = torch.autograd.grad(loss, [tensors[name] for name in names])
    largest = max(gradient.abs().max() for gradient in true)
    for name, got, want in zip(names, gradients, true, strict=True):
        # A gradient that is zero in exact arithmetic is all rounding, so it is held to the model's scale.
        allowed = tolerance * max(want.abs().max(), 1e-2 * largest)
        assert (got - want).abs().max() <= allowed, name
    now = dict(model.named_buffers())
    for key, value in buffers.items():
        assert torch.equal(value, now[key]), key
