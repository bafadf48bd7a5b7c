"""Models of `x-transformers`: a decoder with tied embeddings, an encoder, an encoder-decoder, a vision transformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.entry import BATCH, IGNORED, Batch, Case, Entry, ignoring, image_batch, padded, three

VOCAB, SEQ = 64, 16


def _layers(kind: str, **settings: Any) -> Any:
    import x_transformers

    return getattr(x_transformers, kind)(dim=32, depth=2, heads=4, attn_dim_head=8, **settings)


def _texts(x: str, mask: str) -> Batch:
    kept = padded(SEQ)
    ids = torch.randint(3, VOCAB, (BATCH, SEQ))
    return {x: ids * kept, mask: kept.bool(), "labels": ignoring(ids, kept)}


class Text(nn.Module):
    """A wrapper and its loss; the wrapper's own forward passes whatever it is given on."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        logits = self.net(x, mask=mask)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _text(kind: str, tied: bool, **settings: Any) -> Case:
    import x_transformers

    net = x_transformers.TransformerWrapper(
        num_tokens=VOCAB, max_seq_len=SEQ, tie_embedding=tied, attn_layers=_layers(kind, **settings)
    )
    return Case(Text(net), three(lambda: _texts("x", "mask")))


class Autoregressive(nn.Module):
    """`AutoregressiveWrapper`, which shifts the tokens and returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        import x_transformers

        net = x_transformers.TransformerWrapper(
            num_tokens=VOCAB, max_seq_len=SEQ, attn_layers=_layers("Decoder", rotary_pos_emb=True)
        )
        self.wrapper = x_transformers.AutoregressiveWrapper(net, ignore_index=IGNORED, pad_value=0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.wrapper(tokens)


def _autoregressive() -> Case:
    return Case(Autoregressive(), three(lambda: {"tokens": torch.randint(1, VOCAB, (BATCH, SEQ + 1))}))


def _vision() -> Case:
    import x_transformers

    model = x_transformers.ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=10, attn_layers=_layers("Encoder")
    )
    return Case(model, three(lambda: image_batch("img", 32, 10)), nn.CrossEntropyLoss())


def _entry(name: str, build: Any, pins: tuple[str, ...] = ("tp=2", "zero=3")) -> Entry:
    return Entry(f"x-transformers:{name}", "x-transformers", build, pins)


ENTRIES = [
    _entry("decoder-tied", lambda: _text("Decoder", True)),
    _entry("decoder-modern", lambda: _text("Decoder", False, use_rmsnorm=True, ff_glu=True)),
    _entry("encoder-bias", lambda: _text("Encoder", False, rel_pos_bias=True, attn_qk_norm=True), ("zero=3", "tp=2")),
    _entry("autoregressive", _autoregressive),
    _entry("vit", _vision, ("zero=3", "tp=2")),
]
