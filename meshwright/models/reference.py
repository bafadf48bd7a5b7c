"""Model references: `gpt`, `llama?layers=4&hidden=256`; a family's name and settings become a model and a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """defaults: every setting with its type. `build` makes the model; `shapes` its batch, as (shape, dtype)."""

    name: str
    defaults: Settings
    build: Callable[[Settings], nn.Module]
    shapes: Callable[[Settings, int], dict[str, tuple[tuple[int, ...], str]]]


@dataclass(frozen=True, slots=True)
class Reference:
    """A family with all its settings; prints as the text that makes it again."""

    family: Family
    settings: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        changed = [(k, v) for k, v in self.settings if self.family.defaults[k] != v]
        return self.family.name + ("?" + "&".join(f"{k}={_text(v)}" for k, v in changed) if changed else "")

    def build(self) -> nn.Module:
        """A real model; wrap in `torch.device("meta")` for one without storage."""
        return self.family.build(dict(self.settings))

    def shapes(self, batch: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return self.family.shapes(dict(self.settings), batch)

    def meta(self, batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
        """Model and batch without storage, for planning."""
        import torch

        with torch.device("meta"):
            model = self.build()
            tensors = {n: torch.empty(s, dtype=getattr(torch, d)) for n, (s, d) in self.shapes(batch).items()}
        return model, tensors


def parse_reference(text: str, settings: Iterable[str] = ()) -> Reference:
    """`name?key=value&...`, with further `key=value` settings on top."""
    name, _, query = text.partition("?")
    family = FAMILIES.get(name)
    if family is None:
        raise ModelError(f"unknown model {name!r}", f"one of {', '.join(FAMILIES)}", "name one of these families")
    values = dict(family.defaults)
    for setting in [*(part for part in query.split("&") if part), *settings]:
        key, separator, value = setting.partition("=")
        if not separator or key not in values:
            raise ModelError(
                f"setting {setting!r} of {name}", f"key=value with a key of {', '.join(values)}", "correct the setting"
            )
        values[key] = _value(name, key, value, family.defaults[key])
    return Reference(family, tuple(values.items()))


def _value(name: str, key: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(_positive(part) for part in text.split(","))
        return _positive(text) if isinstance(default, int) else float(text)
    except (ValueError, KeyError) as error:
        kind = "true or false" if isinstance(default, bool) else f"like its default, {_text(default)}"
        raise ModelError(f"setting {key}={text} of {name}", f"a value {kind}", "correct the setting") from error


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _divides(name: str, settings: Settings, whole: str, part: str) -> None:
    if settings[whole] % settings[part]:
        raise ModelError(
            f"{name} with {whole}={settings[whole]} and {part}={settings[part]}",
            f"{whole} divisible by {part}",
            "change one of them",
        )


def _gpt(s: Settings) -> nn.Module:
    from meshwright.models.gpt import GPT

    _divides("gpt", s, "hidden", "heads")
    return GPT(s["layers"], s["hidden"], s["heads"], s["ffn"], s["vocab"], s["seq"], s["tied"])


def _llama(s: Settings) -> nn.Module:
    from meshwright.models.llama import Llama

    _divides("llama", s, "hidden", "heads")
    _divides("llama", s, "heads", "kv_heads")
    return Llama(s["layers"], s["hidden"], s["heads"], s["kv_heads"], s["ffn"], s["vocab"], s["tied"], s["rope_base"])


def _resnet(s: Settings) -> nn.Module:
    from meshwright.models.resnet import ResNet

    return ResNet(s["blocks"], s["width"], s["classes"])


def _tokens(s: Settings, batch: int) -> dict[str, tuple[tuple[int, ...], str]]:
    return dict.fromkeys(("tokens", "targets"), ((batch, s["seq"]), "int64"))


def _images(s: Settings, batch: int) -> dict[str, tuple[tuple[int, ...], str]]:
    return {"images": ((batch, 3, s["image"], s["image"]), "float32"), "labels": ((batch,), "int64")}


_GPT: Settings = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50304, "seq": 1024, "tied": True}
_LLAMA: Settings = {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "seq": 2048}
_LLAMA |= {"tied": True, "rope_base": 500000.0}
_RESNET: Settings = {"blocks": (3, 4, 6, 3), "width": 64, "classes": 1000, "image": 224}

FAMILIES = {
    "gpt": Family("gpt", _GPT, _gpt, _tokens),
    "llama": Family("llama", _LLAMA, _llama, _tokens),
    "resnet": Family("resnet", _RESNET, _resnet, _images),
}
