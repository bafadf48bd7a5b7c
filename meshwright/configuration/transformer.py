"""A transformer as the literature describes it: the sizes from which its ops, parameters and activations follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.errors import PlanError
from meshwright.models.named import NAMED
from meshwright.models.reference import parse_reference


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: ranks of the query's and of the joint key-value projection, sizes of a head."""

    query_rank: int
    value_rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder with its loss. `ffn`: of dense layers. `experts`, `top`, `expert_ffn`, `shared_ffn`: of routed layers,
    which follow the first `dense_layers` where there is more than one expert. `gated`: the MLP has a gate.
    `rms`: RMSNorm and rotary positions; else LayerNorm and learned positions. `dropout`: between layers;
    `attention_dropout`: of attention's weights. `head`: the size of one, where heads do not divide the width evenly."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    kv_heads: int = 0
    gated: bool = False
    rms: bool = False
    bias: bool = True
    tied: bool = False
    dropout: bool = False
    attention_dropout: bool = False
    experts: int = 1
    top: int = 1
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    latent: LatentAttention | None = None
    head: int = 0

    @property
    def head_size(self) -> int:
        return self.head or max(1, self.hidden // self.heads)

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def routed_layers(self) -> int:
        return max(0, self.layers - self.dense_layers) if self.experts > 1 else 0

    def verify(self) -> None:
        for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq", "experts", "top"):
            if getattr(self, name) < 1:
                raise PlanError(f"a transformer with {name}={getattr(self, name)}", "1 or more", "correct it")
        if self.heads % self.key_heads:
            raise PlanError(f"{self.key_heads} heads of keys for {self.heads} heads", "a divisor", "correct it")
        if self.top > self.experts or self.dense_layers > self.layers:
            raise PlanError(
                f"top {self.top} of {self.experts} experts, {self.dense_layers} dense of {self.layers} layers",
                "no more than there are",
                "correct it",
            )
        if self.latent is None and not self.head and self.hidden % self.heads:
            raise PlanError(f"{self.heads} heads of a width of {self.hidden}", "heads that divide it", "correct it")


def transformer_of(reference: str, settings: tuple[str, ...] = ()) -> Transformer:
    """Of a model reference such as `llama3-8b` or `gpt`; other families have no such description."""
    found = parse_reference(reference, settings)
    given: dict[str, Any] = dict(found.settings)
    name = found.family.name
    family = NAMED[name][0] if name in NAMED else name
    if family not in ("gpt", "llama", "moe"):
        raise PlanError(
            f"model {reference!r} is of the family {family}",
            "a decoder of the families gpt, llama or moe",
            "`meshwright plan` prices any model",
        )
    sizes = {name: given[name] for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq")}
    if family == "gpt":
        return Transformer(**sizes, tied=given["tied"], dropout=bool(given.get("dropout", 0.0)))
    if family == "llama":
        return Transformer(
            **sizes, kv_heads=given["kv_heads"], gated=True, rms=True, bias=False, tied=given.get("tied", False)
        )
    return Transformer(
        **sizes,
        kv_heads=given["kv_heads"],
        gated=given["gated"],
        rms=True,
        bias=False,
        tied=given.get("tied", False),
        experts=given["experts"],
        top=given["top"],
        expert_ffn=given["ffn"],
    )
