"""Adapters of `peft` on small models of `transformers`: the base is frozen, the adapters train."""

from __future__ import annotations

from typing import Any

from torch import nn

from bench.zoo.entry import Case, Entry, text_batch, three, without_dropout

VOCAB, SEQ = 64, 16


def _llama(**settings: Any) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, vocab_size=VOCAB,
        intermediate_size=64, use_cache=False, **settings,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=VOCAB, intermediate_size=64
    )
    return without_dropout(transformers.BertForMaskedLM(config))


def _adapted(base: Any, kind: str, **settings: Any) -> Case:
    import peft

    model = peft.get_peft_model(base(), getattr(peft, kind)(**settings))
    return Case(model, three(lambda: text_batch(VOCAB, SEQ)))


def _entry(name: str, build: Any, pins: tuple[str, ...] = ("tp=2", "zero=3")) -> Entry:
    return Entry(f"peft:{name}", "peft", build, pins)


ATTENTION = ["q_proj", "v_proj"]

ENTRIES = [
    _entry("lora-llama", lambda: _adapted(_llama, "LoraConfig", r=4, target_modules=ATTENTION, task_type="CAUSAL_LM")),
    _entry(
        "lora-bert",
        lambda: _adapted(_bert, "LoraConfig", r=4, target_modules=["query", "value"], modules_to_save=["cls"]),
        ("zero=3", "tp=2"),
    ),
    _entry(
        "dora-llama", lambda: _adapted(_llama, "LoraConfig", r=4, target_modules=ATTENTION, use_dora=True), ("zero=3",)
    ),
    _entry("ia3-llama", lambda: _adapted(_llama, "IA3Config", task_type="CAUSAL_LM")),
]
