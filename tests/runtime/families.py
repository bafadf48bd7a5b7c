"""Every model family, and some of `transformers` unchanged, small enough to be run on eight ranks.

Sizes divide by 2, 3, 4, 6 and 8, so that every strategy is possible somewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.models.reference import Reference, parse_reference

BATCH = 24
TEXT = "hidden=48&heads=24&ffn=96&vocab=96&seq=8"
HF = "vocab_size=96&seq=8"

FAMILIES = {
    "gpt": f"gpt?layers=2&{TEXT}",
    "llama": f"llama?layers=2&kv_heads=24&tied=false&{TEXT}",
    "moe": f"moe?layers=1&kv_heads=24&experts=24&{TEXT}",
    "bert": f"bert?layers=2&{TEXT}",
    "t5": f"t5?layers=1&head_dim=2&buckets=8&{TEXT}",
    "vit": "vit?layers=2&hidden=48&heads=24&ffn=96&patch=8&image=16&classes=24",
    "resnet": "resnet?blocks=1,1&width=24&classes=24&image=16",
    "unet": "unet?width=24&levels=2&blocks=1&heads=24&image=8",
    "amoebanet": "amoebanet?layers=3&width=24&classes=24&image=32",
    "mlp": "mlp?layers=3&inputs=24&hidden=48&classes=24",
    "hf gpt2": f"hf:gpt2?n_layer=2&n_embd=48&n_head=24&n_positions=8&resid_pdrop=0&embd_pdrop=0&attn_pdrop=0&{HF}",
    "hf llama": "hf:llama?num_hidden_layers=2&hidden_size=48&num_attention_heads=24&num_key_value_heads=24"
    f"&intermediate_size=96&max_position_embeddings=8&{HF}",
    "hf bert": "hf:bert?num_hidden_layers=2&hidden_size=48&num_attention_heads=24&intermediate_size=96"
    f"&max_position_embeddings=8&hidden_dropout_prob=0&attention_probs_dropout_prob=0&{HF}",
}


SINGLE = ("moe", "hf llama")
"""Run in float32: grouped matmuls know no float64, and Llama's norms go through float32 whatever comes in."""


def family(name: str) -> tuple[nn.Module, dict[str, Tensor], Reference]:
    """The same weights and batch wherever it is called."""
    reference = parse_reference(FAMILIES[name])
    torch.manual_seed(0)
    kind = torch.float32 if name in SINGLE else torch.float64
    model = reference.build().to(kind)
    batch = {
        key: torch.randint(0, 24, shape) if dtype == "int64" else torch.randn(shape, dtype=kind)
        for key, (shape, dtype) in reference.shapes(BATCH).items()
    }
    return model, batch, reference
