"""What segments hand on lies in rows, or channels last: it is copied once, not by every reader."""

from __future__ import annotations

import torch
from captures import capture
from torch import Tensor, nn

import meshwright as mw
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cost.traced.storage import outputs_of
from meshwright.generate.joint import trace
from meshwright.generate.pair import make_pair
from meshwright.generate.program import sharded_segments
from meshwright.generate.strides import lies_last
from meshwright.planner.memory.plans import one_device_plan


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Patches(nn.Module):
    """A residual stream that begins as images with their channels moved to the back."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        x = self.cut(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        loss: Tensor = x.square().mean()
        return loss


class Channels(nn.Module):
    """As ConvNeXt's: each channel convolved by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.mixed = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        x = images + self.mixed(self.alone(images).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        loss: Tensor = x.square().mean()
        return loss


def made(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Program, mw.Plan]:
    program = capture(model, batch)
    mesh = load_cluster("local:1").mesh((1,)).renamed(("rep",))
    return program, one_device_plan(program, mesh)


def test_values_and_gradients_cross_boundaries_in_rows() -> None:
    program, plan = made(Patches(), {"images": torch.randn(4, 3, 16, 16)})
    turned = 0
    for graph in dict.fromkeys(sharded_segments(program, plan)):
        joint = trace(graph)
        handed = [*outputs_of(joint.module)[: len(graph.outputs)]]
        handed += outputs_of(joint.module)[joint.forward_outputs :][: len(joint.grad_inputs)]
        assert all(node.meta["val"].is_contiguous() for node in handed if node is not None)
        turned += sum(node.target is torch.ops.aten.clone.default for node in joint.module.graph.nodes)
    assert turned == 1, "where the patches are made; no layer copies them again"


def test_the_numbers_are_plain_pytorchs() -> None:
    torch.manual_seed(0)
    model, batch = Patches().double(), {"images": torch.randn(4, 3, 16, 16, dtype=torch.float64)}
    loss = model(**batch)
    loss.backward()
    true = {name: entry.grad.clone() for name, entry in model.named_parameters() if entry.grad is not None}
    model.zero_grad()
    _, plan = made(model, batch)
    trainer = mw.parallelize(model, plan)
    assert torch.allclose(trainer.step(batch), loss, rtol=1e-12)
    for name, entry in trainer.named_parameters():
        assert torch.allclose(entry.grad.full_tensor(), true[name], rtol=1e-10), name  # type: ignore[union-attr]


def test_eager_gpus_are_given_images_of_half_precision_channels_last() -> None:
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 12 * 12, 1))

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense

        def forward(self, images: Tensor) -> Tensor:
            loss: Tensor = self.inner(images).mean()
            return loss

    for model, images in ((Channels(), torch.randn(4, 8, 8, 8)), (Mean(), torch.randn(4, 3, 16, 16))):
        single, half = (capture(model, {"images": images}, precision=precision) for precision in ("fp32", "bf16"))
        assert not any(map(lies_last, single.graphs)), "float32 as it comes"
        assert any(map(lies_last, half.graphs))


def test_images_of_a_batch_are_laid_as_they_were_traced() -> None:
    """Convolutions hand on what they make as they are given it: patches of images in rows would lie turned, and every
    layer would copy them."""
    program, plan = made(Patches(), {"images": torch.randn(4, 3, 16, 16)})
    graph = sharded_segments(program, plan)[0]
    pair = make_pair(graph, "cpu", images=True)
    assert not any(node.target is torch.ops.aten.clone.default for node in pair.halves.first.graph.nodes)
    given = {value.name: torch.randn(value.type.sizes) for value in graph.arguments()}
    patches = pair.first([given[value.name] for value in graph.arguments()])[0]
    assert patches.is_contiguous()
    plain = make_pair(graph, "cpu", images=False).first([given[value.name] for value in graph.arguments()])[0]
    assert torch.allclose(patches, plain, atol=1e-6)
