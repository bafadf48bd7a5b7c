"""Models of `open_clip` at small sizes under its own contrastive loss, which couples the samples of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.entry import BATCH, Batch, Case, Entry, three

VOCAB, SEQ = 64, 12
TEXT = {"context_length": SEQ, "vocab_size": VOCAB, "width": 32, "heads": 4, "layers": 2}


class Contrastive(nn.Module):
    """A model and its loss, as `open_clip`'s training loop joins them."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        from open_clip import loss

        self.model, self.loss = model, getattr(loss, kind)()

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        images, texts, scale, *bias = self.model(image, text)
        return self.loss(images, texts, scale, *bias)


def _case(vision: dict[str, Any], kind: str = "ClipLoss", **settings: Any) -> Case:
    import open_clip

    model = open_clip.CLIP(32, {"image_size": 32, **vision}, TEXT, **settings)

    def batch() -> Batch:
        text = torch.randint(1, VOCAB - 1, (BATCH, SEQ))
        text[:, -1] = VOCAB - 1  # the end of the text, which the pooling looks for
        return {"image": torch.randn(BATCH, 3, 32, 32), "text": text}

    return Case(Contrastive(model, kind), three(batch))


def _entry(name: str, build: Any, pins: tuple[str, ...] = ("tp=2", "zero=3")) -> Entry:
    return Entry(f"open_clip:{name}", "open_clip", build, pins)


VIT = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
RESNET = {"layers": [1, 1, 1, 1], "width": 8, "patch_size": None}

ENTRIES = [
    _entry("vit", lambda: _case(VIT)),
    _entry("resnet", lambda: _case(RESNET), ("zero=3", "tp=2")),
    _entry("siglip", lambda: _case(VIT, "SigLipLoss", init_logit_bias=-10.0)),
]
