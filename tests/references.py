"""Every model family at a small size, as model references, with real tensors for a batch of any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.models.family import Shapes
from meshwright.models.reference import parse_reference

FAMILIES = {
    "gpt": "gpt?layers=3&hidden=24&heads=4&ffn=48&vocab=32&seq=12",
    "llama": "llama?layers=3&hidden=24&heads=4&kv_heads=2&ffn=48&vocab=32&seq=12&tied=false",
    "moe": "moe?layers=3&hidden=24&heads=4&kv_heads=2&ffn=16&vocab=32&seq=12&experts=4&balance=0.1",
    "bert": "bert?layers=3&hidden=24&heads=4&ffn=48&vocab=32&seq=12",
    "t5": "t5?layers=3&hidden=24&heads=4&head_dim=6&ffn=48&vocab=32&seq=12&buckets=8",
    "vit": "vit?layers=3&hidden=24&heads=4&ffn=48&patch=8&image=32&classes=10",
    "resnet": "resnet?blocks=1,3&width=4&classes=10&image=32",
    "wide-resnet": "wide-resnet?blocks=1,2&width=4&classes=10&image=32",
    "unet": "unet?width=8&levels=2&blocks=2&heads=2&image=16",
    "amoebanet": "amoebanet?layers=3&width=4&classes=10&image=64",
    "mlp": "mlp?layers=3&inputs=12&hidden=16",
}


def real_model(
    reference: str, batch: int, dtype: torch.dtype = torch.float32, classes: int = 10
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A real model and a real batch, the same wherever it is called. Integer inputs are numbers below `classes`."""
    torch.manual_seed(0)
    parsed = parse_reference(reference)
    return parsed.build().to(dtype).train(), real_batch(parsed.shapes(batch), dtype, classes)


def real_batch(shapes: Shapes, dtype: torch.dtype = torch.float32, classes: int = 10) -> dict[str, Tensor]:
    return {
        key: torch.randint(0, classes, shape) if kind == "int64" else torch.randn(shape, dtype=dtype)
        for key, (shape, kind) in shapes.items()
    }
