"""A compiled half sees the strides it was traced with; what other segments read lies in rows."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.generate.strides import as_traced
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint


def test_turned_values_are_copied_on_the_way_in_and_out() -> None:
    mode = fake_mode()
    fakes = [fake_tensor((2, 3), torch.float32, mode), fake_tensor((1, 4), torch.float32, mode)]
    traced = trace_joint(lambda x, y: [x.t(), x.t()], fakes, mode)
    seen: list[Tensor] = []

    def run(box: list[Tensor]) -> tuple[Tensor, ...]:
        seen.extend(box)
        return (box[0].t(), box[0].t())

    x, y = torch.arange(6.0).view(3, 2).t(), torch.arange(4.0).view(4, 1).t()
    handed_on, kept = as_traced(run, traced, handed_on=1)([x, y])
    assert seen[0].stride() == (3, 1)
    assert torch.equal(seen[0], x)
    assert seen[1] is y, "the stride of a dim of one element says nothing"
    assert handed_on.is_contiguous()
    assert not kept.is_contiguous(), "what its own other half reads stays as it was traced"
    assert torch.equal(handed_on, kept)
