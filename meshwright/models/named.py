"""Sizes that people know by name, as settings of a family. `gpt-*`, `moe-*`, `wresnet-*` are Alpa's ladders."""

from __future__ import annotations

from meshwright.models.family import Settings


def _gpt(layers: int, hidden: int, heads: int, vocab: int = 50257, seq: int = 1024) -> tuple[str, Settings]:
    settings = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": 4 * hidden, "vocab": vocab, "seq": seq}
    return "gpt", settings | {"tied": True}


def _llama(layers: int, hidden: int, heads: int, ffn: int) -> tuple[str, Settings]:
    settings = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": 8, "ffn": ffn, "vocab": 128256}
    return "llama", settings | {"seq": 8192, "tied": False, "rope_base": 500000.0}


def _moe(layers: int, hidden: int, experts: int) -> tuple[str, Settings]:
    settings = {"layers": layers, "hidden": hidden, "heads": 16, "kv_heads": 16, "ffn": 4 * hidden, "vocab": 32000}
    return "moe", settings | {"seq": 1024, "experts": experts, "gated": False, "tied": False}


def _wresnet(width: int, factor: int, deep: bool = False) -> tuple[str, Settings]:
    blocks = (3, 4, 23, 3) if deep else (3, 4, 6, 3)
    return "wide-resnet", {"blocks": blocks, "width": width, "factor": factor, "classes": 1024, "image": 224}


NAMED: dict[str, tuple[str, Settings]] = {
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    "gpt3-175b": _gpt(96, 12288, 96, seq=2048),
    "gpt-350m": _gpt(24, 1024, 16, vocab=51200),
    "gpt-760m": _gpt(24, 1536, 16, vocab=51200),
    "gpt-1.3b": _gpt(24, 2048, 32, vocab=51200),
    "gpt-2.6b": _gpt(32, 2560, 32, vocab=51200),
    "gpt-6.7b": _gpt(32, 4096, 32, vocab=51200),
    "gpt-15b": _gpt(48, 5120, 40, vocab=51200),
    "gpt-39b": _gpt(48, 8192, 64, vocab=51200),
    "moe-380m": _moe(8, 768, 8),
    "moe-690m": _moe(8, 768, 16),
    "moe-1.3b": _moe(16, 768, 16),
    "moe-2.4b": _moe(16, 1024, 16),
    "moe-10b": _moe(16, 1536, 32),
    "moe-27b": _moe(16, 2048, 48),
    "moe-70b": _moe(32, 2048, 64),
    "wresnet-250m": _wresnet(160, 2),
    "wresnet-500m": _wresnet(224, 2),
    "wresnet-1b": _wresnet(320, 2),
    "wresnet-2b": _wresnet(448, 2),
    "wresnet-4b": _wresnet(640, 2),
    "wresnet-6.8b": _wresnet(320, 16),
    "wresnet-13b": _wresnet(320, 16, deep=True),
    "llama3-8b": _llama(32, 4096, 32, 14336),
    "llama3-70b": _llama(80, 8192, 64, 28672),
    "llama3-405b": _llama(126, 16384, 128, 53248),
    "mixtral-8x7b": (
        "moe",
        {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000, "seq": 4096},
    ),
    "bert-large": ("bert", {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "seq": 512}),
    "t5-large": ("t5", {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096}),
    "vit-large": ("vit", {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096}),
    "resnet50": ("resnet", {}),
}

PUBLISHED = ("gpt2", "gpt3", "llama3", "bert")
"""Of sizes whose names begin so, `seq` is the number of positions that was published; of others a benchmark's."""


def beyond_published(model: str) -> str:
    """A line where a size by name is built with more positions than were published: it is another model."""
    name, _, query = model.partition("?")
    asked = dict(part.partition("=")[::2] for part in query.split("&")).get("seq", "0")
    if name not in NAMED or not name.startswith(PUBLISHED):
        return ""
    have = NAMED[name][1]["seq"]
    return f"{name} has {have:,} positions; planned with {int(asked):,}" if int(asked) > have else ""
