"""Image models of `timm` at small sizes; no weights are fetched."""

from __future__ import annotations

from typing import Any

from torch import nn

from bench.zoo.entry import Case, Entry, image_batch, three, without_dropout

CLASSES, SIZE = 10, 32
VIT: dict[str, Any] = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "resnet18": {"layers": (1, 1, 1, 1), "channels": (8, 16, 16, 32), "stem_width": 8},
    "resnetv2_50": {"layers": (1, 1), "channels": (16, 32), "stem_chs": 8},
    "vit_tiny_patch16_224": VIT,
    "deit3_small_patch16_224": VIT,
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)},
    "swin_tiny_patch4_window7_224": {
        "img_size": SIZE, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4),
    },
    "efficientnet_b0": {},
    "mobilenetv3_small_050": {},
    "resmlp_12_224": {"img_size": SIZE},
    "regnetx_002": {},
    "densenet": {"growth_rate": 8, "block_config": (3, 3)},
    "cait_xxs24_224": VIT | {"depth": 2, "depth_token_only": 1},
    "eva02_tiny_patch14_224": VIT,
    "mobilevit_xxs": {},
}  # fmt: skip


def _case(name: str) -> Case:
    import timm

    settings = {"num_classes": CLASSES, **MODELS[name]}
    model: nn.Module
    if name == "densenet":  # those with a name have their sizes fixed
        model = timm.models.densenet.DenseNet(**settings)
    else:
        model = timm.create_model(name, pretrained=False, **settings)
    return Case(without_dropout(model), three(lambda: image_batch("x", SIZE, CLASSES)), nn.CrossEntropyLoss())


def _entry(name: str, pins: tuple[str, ...]) -> Entry:
    return Entry(f"timm:{name}", "timm", lambda: _case(name), pins)


ENTRIES = [_entry(name, ("tp=2", "zero=3") if at % 2 == 0 else ("zero=3", "tp=2")) for at, name in enumerate(MODELS)]
