"""A compiled half sees the strides it was traced with; what other segments read lies in rows."""

from __future__ import annotations

import torch
from captures import capture
from graph_arguments import arguments
from small_models import small_model
from torch import Tensor

from meshwright.generate.pair import make_pair
from meshwright.generate.strides import as_traced, holds_images, memory_format
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


def test_segments_of_images_are_traced_with_images_that_lie_channels_last() -> None:
    program = capture(*small_model("resnet", "float64"))
    graph = next(found for found in (one.at(6) for one in program.graphs) if len(found.params) > 6)
    assert holds_images(graph)
    assert not any(holds_images(one) for one in capture(*small_model("gpt")).graphs)
    made = []
    for images in (False, True):
        pair, lies = make_pair(graph, images=images), memory_format(4, images)
        given = {name: t.contiguous(memory_format=lies) if t.dim() == 4 else t for name, t in arguments(graph).items()}
        outputs, _, saved = pair.forward(given)
        torch.manual_seed(1)
        gradients = [torch.rand(t.shape, dtype=t.dtype).contiguous(memory_format=lies) for t in outputs]
        inputs, params = pair.backward(saved, given, gradients)
        made.append((outputs, list(inputs.values()), list(params.values())))
    torch.testing.assert_close(made[0], made[1])
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (*made[1][0], *made[1][1]) if t is not None)
    assert all(t.is_contiguous() for t in made[1][2] if t is not None), "a parameter's gradient lies as the parameter"
