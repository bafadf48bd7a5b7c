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
    "hf t5": "hf:t5?d_model=48&d_kv=2&d_ff=96&num_layers=1&num_decoder_layers=1&num_heads=24&dropout_rate=0"
    f"&relative_attention_num_buckets=8&{HF}",
    "hf vit": "hf:vit?num_hidden_layers=2&hidden_size=48&num_attention_heads=24&intermediate_size=96"
    "&image_size=16&patch_size=8",
    "hf resnet": "hf:resnet?embedding_size=24&hidden_sizes=48,96&depths=1,1",
    "hf mixtral": "hf:mixtral?num_hidden_layers=1&hidden_size=48&num_attention_heads=24&num_key_value_heads=24"
    f"&intermediate_size=96&max_position_embeddings=8&num_local_experts=24&{HF}",
}

DEEPER = {
    "llama tied": f"llama?layers=2&kv_heads=24&tied=true&{TEXT}",
    "deep moe": f"moe?layers=3&kv_heads=24&experts=24&{TEXT}",
    "deep resnet": "resnet?blocks=1,1,1,1&width=24&classes=24&image=16",
}
"""For pipelines: with as many segments as the longest of them has stages."""

SINGLE = ("moe", "deep moe", "hf gpt2", "hf llama", "hf t5", "hf mixtral")
"""Run in float32: grouped matmuls know no float64, and of `transformers` norms, and GPT-2's loss, go through float32
whatever comes in."""

CLASSES = {"hf vit": 2, "hf resnet": 2}
"""Integer inputs are numbers below 24, or below this."""

IMAGES = {"hf resnet": 32}
"""Images of this size instead of the reference's."""


def family(name: str) -> tuple[nn.Module, dict[str, Tensor], Reference]:
    """The same weights and batch wherever it is called."""
    reference = parse_reference((FAMILIES | DEEPER)[name])
    torch.manual_seed(0)
    kind = torch.float32 if name in SINGLE else torch.float64
    model = reference.build().to(kind)
    batch = {}
    for key, (shape, dtype) in reference.shapes(BATCH).items():
        if dtype == "int64":
            batch[key] = torch.randint(0, CLASSES.get(name, 24), shape)
        else:
            sizes = (*shape[:2], IMAGES[name], IMAGES[name]) if name in IMAGES else shape
            batch[key] = torch.randn(sizes, dtype=kind)
    return model, batch, reference
