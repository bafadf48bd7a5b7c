"""Every family at a small size, as model references, with real tensors for a batch of any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.models.reference import parse_reference

SMALL = {
    "gpt": "gpt?layers=3&hidden=24&heads=4&ffn=48&vocab=32&seq=12",
    "llama": "llama?layers=3&hidden=24&heads=4&kv_heads=2&ffn=48&vocab=32&seq=12&tied=false",
    "resnet": "resnet?blocks=1,3&width=4&classes=10&image=32",
}


def small_family(name: str, batch: int = 4) -> tuple[nn.Module, dict[str, Tensor]]:
    """A real model and a real batch; integer inputs are class numbers, valid for every family's small size."""
    torch.manual_seed(0)
    reference = parse_reference(SMALL[name])
    return reference.build(), real_batch(reference.shapes(batch))


def real_batch(shapes: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, Tensor]:
    return {
        key: torch.randint(0, 10, shape) if dtype == "int64" else torch.randn(shape, dtype=getattr(torch, dtype))
        for key, (shape, dtype) in shapes.items()
    }
