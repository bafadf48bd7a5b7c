"""Model references at a small size, and real models and batches for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from references import FAMILIES, real_model
from torch import Tensor, nn

_HF = "hidden_size=48&num_attention_heads=4&num_hidden_layers=2&intermediate_size=96"
TRANSFORMERS = {
    "hf:gpt2": "hf:gpt2?n_layer=2&n_embd=48&n_head=4&vocab_size=96&seq=12",
    "hf:llama": f"hf:llama?{_HF}&num_key_value_heads=2&vocab_size=96&seq=12",
    "hf:mixtral": f"hf:mixtral?{_HF}&num_key_value_heads=2&vocab_size=96&num_local_experts=4&seq=12",
    "hf:bert": f"hf:bert?{_HF}&vocab_size=96&seq=12",
    "hf:vit": f"hf:vit?{_HF}&image_size=32&patch_size=8",
}
CONFIGURED = ("hf:t5", "hf:resnet")
"""Models whose references cannot say all that a small size needs."""

REFERENCES = FAMILIES | {"gpt": f"{FAMILIES['gpt']}&dropout=0.1"} | TRANSFORMERS
SMALL = (*REFERENCES, *CONFIGURED)


def real(name: str, batch: int = 3, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Tensor]]:
    if name not in CONFIGURED:
        return real_model(REFERENCES[name], batch, dtype, classes=2)
    torch.manual_seed(0)
    return configured(name, batch, dtype)


def configured(name: str, batch: int, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers

    if name == "hf:t5":
        sizes = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 96}
        config = transformers.T5Config(**sizes, decoder_start_token_id=0)
        made: nn.Module = transformers.T5ForConditionalGeneration(config)
        tokens = {"input_ids": torch.randint(0, 96, (batch, 12)), "labels": torch.randint(0, 96, (batch, 10))}
        return made.to(dtype).train(), tokens
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], num_labels=10)
    made = transformers.ResNetForImageClassification(config)
    images = {"pixel_values": torch.randn(batch, 3, 32, 32, dtype=dtype), "labels": torch.randint(0, 10, (batch,))}
    return made.to(dtype).train(), images


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    result = model(**batch)
    return result if isinstance(result, Tensor) else result.loss
