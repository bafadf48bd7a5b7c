"""Image models of `torchvision` with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.entry import BATCH, IGNORED, Batch, Case, Entry, image_batch, three, without_dropout

CLASSES = 10


def _image_model(name: str, size: int = 32, **settings: Any) -> Case:
    import torchvision

    model: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES, **settings)
    return Case(without_dropout(model), three(lambda: image_batch("x", size, CLASSES)), nn.CrossEntropyLoss())


def _vit() -> Case:
    import torchvision

    model = torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=CLASSES)
    return Case(model, three(lambda: image_batch("x", 32, CLASSES)), nn.CrossEntropyLoss())


def _segmentation() -> Case:
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=CLASSES
    )

    def batch() -> Batch:
        labels = torch.randint(0, CLASSES, (BATCH, 64, 64))
        labels[:, :5] = IGNORED
        return {"input": torch.randn(BATCH, 3, 64, 64), "labels": labels}

    def loss(output: dict[str, Tensor], labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output["out"], labels, ignore_index=IGNORED)

    return Case(without_dropout(model), three(batch), loss)


def _entry(name: str, build: Any) -> Entry:
    return Entry(f"torchvision:{name}", "torchvision", build)


ENTRIES = [
    _entry("resnet18", lambda: _image_model("resnet18")),
    _entry("shufflenet_v2_x0_5", lambda: _image_model("shufflenet_v2_x0_5")),
    _entry("squeezenet1_1", lambda: _image_model("squeezenet1_1", 64)),
    _entry("vit", _vit),
    _entry("lraspp_mobilenet_v3", _segmentation),
]
