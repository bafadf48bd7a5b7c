"""Models of `transformers` at small sizes, built from the config, with the cache on where it is by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.architectures import ARCHITECTURES, IMAGE_TOKEN, IMAGE_TOKENS
from bench.zoo.entry import BATCH, Batch, Case, Entry, ignoring, padded, three, without_dropout
from meshwright.models.reference import Reference, parse_reference

CHOSEN = (
    "gpt2", "gptj", "gpt_neox", "mpt", "opt", "bloom", "llama", "mistral", "qwen2", "olmo2", "stablelm", "granite",
    "phi", "phi3", "cohere", "qwen3", "gemma2", "gemma3_text", "glm", "falcon", "smollm3", "mixtral", "qwen3_moe",
    "granitemoe", "gpt_oss", "deepseek_v3", "mamba", "mamba2", "jamba", "rwkv", "bert", "albert", "electra",
    "deberta-v2", "roberta", "distilbert", "modernbert", "longformer", "xlnet", "t5", "bart", "pegasus", "marian",
    "whisper", "vit", "deit", "beit", "dinov2", "swin", "convnext", "resnet", "regnet", "segformer", "clip",
    "siglip", "wav2vec2", "hubert", "blip", "llava",
)  # fmt: skip
SEQ = 16
_PARTS = {"llama": ("microbatch=2",), "bart": ("microbatch=2",)}
"""Ignored labels differ in number between micro-batches; their mean does not come apart."""
_ANSWERS = {"longformer": "False"}
"""It asks whether any token of the batch has global attention: here none has."""


def _reference(name: str) -> Reference:
    settings = ARCHITECTURES[name].replace("num_hidden_layers=3", "num_hidden_layers=2").replace("seq=32", f"seq={SEQ}")
    return parse_reference(f"hf:{name}?{settings}")


def _case(name: str) -> Case:
    reference = _reference(name)
    model = without_dropout(reference.build())
    for config in (model.config, getattr(model.config, "text_config", None)):
        if getattr(config, "use_cache", None) is False and hasattr(type(config)(), "use_cache"):
            config.use_cache = type(config)().use_cache
    taken = inspect.signature(model.forward).parameters
    return Case(model, three(lambda: _batch(name, reference, model, taken)), reference.family.loss)


def _batch(name: str, reference: Reference, model: Any, taken: Any) -> Batch:
    found: Batch = {}
    for key, (shape, dtype) in reference.shapes(BATCH).items():
        found[key] = torch.randint(3, 30, shape) if dtype == "int64" else torch.randn(shape)
    if name in ("wav2vec2", "hubert"):
        found["input_values"], found["labels"] = found["input_values"][:, :4000], found["labels"][:, :4]
    if name == "llava":
        found["input_ids"][:, :IMAGE_TOKENS] = IMAGE_TOKEN
    if (labels := found.get("labels")) is not None and labels.dim() == 1:
        found["labels"] = labels % model.config.num_labels
    if (ids := found.get("input_ids")) is not None:
        _mask(found, ids, "attention_mask" in taken)
    elif labels is not None and labels.dim() == 2:
        found["labels"] = ignoring(labels, padded(labels.shape[1]))
    return found


def _mask(found: Batch, ids: Tensor, takes: bool) -> None:
    mask = padded(ids.shape[1])
    if "pixel_values" in found:
        mask[:, :IMAGE_TOKENS] = 1
    if takes:
        found["attention_mask"] = mask
        found["input_ids"] = ids * mask
    if (labels := found.get("labels")) is not None and labels.dim() == 2:
        found["labels"] = ignoring(labels, mask if labels.shape == mask.shape else padded(labels.shape[1]))


def _entry(name: str, pins: tuple[str, ...]) -> Entry:
    made = Entry(f"transformers:{name}", "transformers", lambda: _case(name), pins, _PARTS.get(name, ()))
    return replace(made, answer=_ANSWERS.get(name, ""))


def _head(name: str, kind: str, label: Callable[[], Tensor]) -> Entry:
    """One of the other heads of BERT."""

    def build() -> Case:
        import transformers

        config = transformers.BertConfig(
            hidden_size=32,
            num_attention_heads=4,
            num_hidden_layers=2,
            intermediate_size=64,
            vocab_size=64,
            num_labels=4,
        )
        model: nn.Module = without_dropout(getattr(transformers, kind)(config))

        def batch() -> Batch:
            mask = padded(SEQ)
            return {"input_ids": torch.randint(3, 64, (BATCH, SEQ)) * mask, "attention_mask": mask, "labels": label()}

        return Case(model, three(batch))

    return Entry(f"transformers:{name}", "transformers", build)


ENTRIES = [
    _entry(name, ("tp=2", "zero=3") if at % 2 == 0 else ("zero=3", "tp=2")) for at, name in enumerate(CHOSEN)
] + [
    _head("bert-sequence", "BertForSequenceClassification", lambda: torch.randint(0, 4, (BATCH,))),
    _head(
        "bert-token",
        "BertForTokenClassification",
        lambda: ignoring(torch.randint(0, 4, (BATCH, SEQ)), padded(SEQ)),
    ),
]
