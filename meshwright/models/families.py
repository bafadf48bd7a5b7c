"""The model families: for each, its settings with their defaults, how it is built, and the batch it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.errors import ModelError
from meshwright.models.family import Family, Settings, Shapes

if TYPE_CHECKING:
    from torch import nn


def _divides(name: str, s: Settings, whole: str, part: str) -> None:
    if s[whole] % s[part]:
        raise ModelError(
            f"{name} with {whole}={s[whole]} and {part}={s[part]}", f"{whole} divisible by {part}", "change one of them"
        )


def _multiple(name: str, s: Settings, key: str, of: int, why: str) -> None:
    if s[key] % of:
        raise ModelError(f"{name} with {key}={s[key]}", f"{key} a multiple of {of}: {why}", "change it")


def _gpt(s: Settings) -> nn.Module:
    from meshwright.models.gpt import GPT

    _divides("gpt", s, "hidden", "heads")
    return GPT(s["layers"], s["hidden"], s["heads"], s["ffn"], s["vocab"], s["seq"], s["tied"], s["dropout"])


def _check_heads(name: str, s: Settings) -> None:
    _divides(name, s, "hidden", "heads")
    _divides(name, s, "heads", "kv_heads")
    _multiple(name, {"head_dim": s["hidden"] // s["heads"]}, "head_dim", 2, "rotary positions turn pairs")


def _llama(s: Settings) -> nn.Module:
    from meshwright.models.llama import Llama

    _check_heads("llama", s)
    return Llama(s["layers"], s["hidden"], s["heads"], s["kv_heads"], s["ffn"], s["vocab"], s["tied"], s["rope_base"])


def _moe(s: Settings) -> nn.Module:
    from meshwright.models.moe import MoE

    _check_heads("moe", s)
    for key in ("hidden", "ffn"):
        _multiple("moe", s, key, 8, "a grouped matmul reads rows of 16 bytes")
    if s["top"] > s["experts"]:
        raise ModelError(f"moe with top={s['top']} of experts={s['experts']}", "top at most experts", "change one")
    wanted = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "top", "gated", "tied", "rope_base")
    return MoE(*(s[key] for key in (*wanted, "balance")))


def _bert(s: Settings) -> nn.Module:
    from meshwright.models.bert import Bert

    _divides("bert", s, "hidden", "heads")
    return Bert(s["layers"], s["hidden"], s["heads"], s["ffn"], s["vocab"], s["seq"], s["dropout"])


def _t5(s: Settings) -> nn.Module:
    from meshwright.models.t5 import T5

    _multiple("t5", s, "buckets", 4, "half of them for each direction, half of those for near positions")
    wanted = ("layers", "hidden", "heads", "head_dim", "ffn", "vocab", "buckets", "tied", "dropout")
    return T5(*(s[key] for key in wanted))


def _vit(s: Settings) -> nn.Module:
    from meshwright.models.vit import ViT

    _divides("vit", s, "hidden", "heads")
    _divides("vit", s, "image", "patch")
    wanted = ("layers", "hidden", "heads", "ffn", "patch", "image", "classes", "dropout")
    return ViT(*(s[key] for key in wanted))


def _resnet(s: Settings) -> nn.Module:
    from meshwright.models.resnet import ResNet

    return ResNet(s["blocks"], s["width"], s["classes"], s["factor"])


def _unet(s: Settings) -> nn.Module:
    from meshwright.models.unet import UNet

    _multiple("unet", s, "width", 4, "its norms have 4 groups")
    _multiple("unet", s, "image", 1 << (s["levels"] - 1), "each level halves it")
    _divides("unet", {"channels": s["width"] << (s["levels"] - 1), "heads": s["heads"]}, "channels", "heads")
    return UNet(s["width"], s["levels"], s["blocks"], s["heads"], s["channels"])


def _amoebanet(s: Settings) -> nn.Module:
    from meshwright.models.amoebanet import AmoebaNet

    _multiple("amoebanet", s, "layers", 3, "a third on each resolution")
    _multiple("amoebanet", s, "image", 32, "it is halved five times")
    return AmoebaNet(s["layers"], s["width"], s["classes"])


def _mlp(s: Settings) -> nn.Module:
    from meshwright.models.mlp import MLP

    return MLP(s["layers"], s["inputs"], s["hidden"], s["classes"])


def _tokens(s: Settings, batch: int) -> Shapes:
    return dict.fromkeys(("tokens", "targets"), ((batch, s["seq"]), "int64"))


def _images(s: Settings, batch: int) -> Shapes:
    return {"images": ((batch, 3, s["image"], s["image"]), "float32"), "labels": ((batch,), "int64")}


def _noisy_images(s: Settings, batch: int) -> Shapes:
    image = ((batch, s["channels"], s["image"], s["image"]), "float32")
    return {"images": image, "times": ((batch,), "int64"), "noise": image}


def _features(s: Settings, batch: int) -> Shapes:
    return {"features": ((batch, s["inputs"]), "float32"), "labels": ((batch,), "int64")}


_GPT: Settings = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50304, "seq": 1024, "tied": True}
_GPT |= {"dropout": 0.0}
_LLAMA: Settings = {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "seq": 2048}
_LLAMA |= {"tied": True, "rope_base": 500000.0}
_MOE: Settings = {"layers": 16, "hidden": 1024, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocab": 32000, "seq": 2048}
_MOE |= {"experts": 8, "top": 2, "gated": True, "tied": False, "rope_base": 1000000.0, "balance": 0.0}
_BERT: Settings = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 30522, "seq": 512, "dropout": 0.0}
_T5: Settings = {"layers": 12, "hidden": 768, "heads": 12, "head_dim": 64, "ffn": 3072, "vocab": 32128, "seq": 512}
_T5 |= {"buckets": 32, "tied": True, "dropout": 0.0}
_VIT: Settings = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "patch": 16, "image": 224, "classes": 1000}
_VIT |= {"dropout": 0.0}
_RESNET: Settings = {"blocks": (3, 4, 6, 3), "width": 64, "factor": 1, "classes": 1000, "image": 224}
_UNET: Settings = {"width": 128, "levels": 4, "blocks": 2, "heads": 8, "channels": 3, "image": 64}
_AMOEBANET: Settings = {"layers": 18, "width": 256, "classes": 1000, "image": 224}
_MLP: Settings = {"layers": 4, "inputs": 784, "hidden": 1024, "classes": 10}

FAMILIES = {
    family.name: family
    for family in (
        Family("gpt", _GPT, _gpt, _tokens),
        Family("llama", _LLAMA, _llama, _tokens),
        Family("moe", _MOE, _moe, _tokens),
        Family("bert", _BERT, _bert, _tokens),
        Family("t5", _T5, _t5, _tokens),
        Family("vit", _VIT, _vit, _images),
        Family("resnet", _RESNET, _resnet, _images),
        Family("wide-resnet", _RESNET | {"factor": 2}, _resnet, _images),
        Family("unet", _UNET, _unet, _noisy_images),
        Family("amoebanet", _AMOEBANET, _amoebanet, _images),
        Family("mlp", _MLP, _mlp, _features),
    )
}
