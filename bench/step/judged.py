"""The models that `bench/step_accuracy.py` is judged by. The list was fixed before any of them was measured; prices are
made on others (`bench/step/diagnose.py`, `seen.py`)."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=6&seq=1024"
JUDGED = {
    "dit-l/4": ("dit?layers=8&hidden=1024&heads=16&size=64&patch=4", 48),
    "convnext-b": ("hf:convnext?hidden_sizes=128,256,512,1024&depths=2,2,8,2&drop_path_rate=0", 64),
    "swin-b": (
        "hf:swin?embed_dim=128&depths=2,2,6,2&num_heads=4,8,16,32&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        64,
    ),
    "whisper-m": (
        "hf:whisper?d_model=1024&encoder_layers=4&decoder_layers=4&encoder_attention_heads=16&decoder_attention_heads=16"
        "&encoder_ffn_dim=4096&decoder_ffn_dim=4096&seq=384&dropout=0",
        16,
    ),
    "mamba2-l": (
        "hf:mamba2?hidden_size=1024&num_hidden_layers=4&num_heads=32&head_dim=64&n_groups=1&state_size=64"
        "&chunk_size=128&vocab_size=16000&seq=512&pad_token_id=0",
        4,
    ),
    "gemma": (
        f"hf:gemma?hidden_size=1536&intermediate_size=6144&num_attention_heads=8&num_key_value_heads=1&head_dim=192"
        f"&vocab_size=48000&{TEXT}&pad_token_id=0",
        6,
    ),
    "qwen2-l": (
        f"hf:qwen2?hidden_size=1536&intermediate_size=8960&num_attention_heads=12&num_key_value_heads=2"
        f"&vocab_size=40000&{TEXT}",
        6,
    ),
    "mistral": (
        f"hf:mistral?hidden_size=1024&intermediate_size=3584&num_attention_heads=16&num_key_value_heads=4"
        f"&vocab_size=32000&{TEXT}",
        12,
    ),
    "phi": (
        f"hf:phi?hidden_size=1024&intermediate_size=4096&num_attention_heads=16&vocab_size=51200&{TEXT}"
        "&resid_pdrop=0&embd_pdrop=0&attention_dropout=0",
        8,
    ),
    "roberta": (
        "hf:roberta?hidden_size=1024&intermediate_size=4096&num_attention_heads=16&num_hidden_layers=8&vocab_size=50272"
        "&seq=384&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        24,
    ),
    "bart": (
        "hf:bart?d_model=768&encoder_layers=6&decoder_layers=6&encoder_attention_heads=12&decoder_attention_heads=12"
        "&encoder_ffn_dim=3072&decoder_ffn_dim=3072&vocab_size=50272&seq=512&dropout=0&attention_dropout=0",
        16,
    ),
    "deit": (
        "hf:deit?hidden_size=768&intermediate_size=3072&num_attention_heads=12&num_hidden_layers=10&image_size=224"
        "&patch_size=16&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        64,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of 20 to 200 ms on an H200."""

COMPILED = (
    *(("dit-l/4", "bf16"), ("qwen2-l", "bf16"), ("phi", "bf16"), ("deit", "bf16"), ("gemma", "bf16")),
    ("qwen2-l", "fp32"),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    return Case(reference, batch, "bf16" if precision == "bf16" else "fp32", compiled)
