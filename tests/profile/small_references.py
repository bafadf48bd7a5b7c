"""Model references at a small size, and real models and batches for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from meshwright.models.reference import parse_reference

FAMILIES = {
    "gpt": "gpt?layers=3&hidden=24&heads=4&ffn=48&vocab=32&seq=12&dropout=0.1",
    "llama": "llama?layers=3&hidden=24&heads=4&kv_heads=2&ffn=48&vocab=32&seq=12&tied=false",
    "moe": "moe?layers=3&hidden=24&heads=4&kv_heads=2&ffn=16&vocab=32&seq=12&experts=4&balance=0.1",
    "bert": "bert?layers=3&hidden=24&heads=4&ffn=48&vocab=32&seq=12",
    "t5": "t5?layers=3&hidden=24&heads=4&head_dim=6&ffn=48&vocab=32&seq=12&buckets=8",
    "vit": "vit?layers=3&hidden=24&heads=4&ffn=48&patch=8&image=32&classes=10",
    "resnet": "resnet?blocks=1,3&width=4&classes=10&image=32",
    "wide-resnet": "wide-resnet?blocks=1,2&width=4&classes=10&image=32",
    "unet": "unet?width=8&levels=2&blocks=2&heads=2&image=16",
    "amoebanet": "amoebanet?layers=3&width=4&classes=10&image=64",
    "mlp": "mlp?layers=3&inputs=12&hidden=16",
}
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

SMALL = (*FAMILIES, *TRANSFORMERS, *CONFIGURED)


def real(name: str, batch: int = 3, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    if name in CONFIGURED:
        return configured(name, batch, dtype)
    reference = parse_reference((FAMILIES | TRANSFORMERS)[name])
    made = {n: _tensor(shape, kind, dtype) for n, (shape, kind) in reference.shapes(batch).items()}
    return reference.build().to(dtype).train(), made


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


def _tensor(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 2, shape) if kind == "int64" else torch.randn(shape, dtype=dtype)
