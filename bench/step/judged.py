"""The models that `bench/step_accuracy.py` is judged by, the fourth such list. It was fixed before any of them was
measured; prices are made on others (`bench/step/diagnose.py`, `seen.py`)."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=7&seq=896"
JUDGED = {
    "dit-896": ("dit?layers=8&hidden=896&heads=14&size=32&patch=2", 56),
    "convnext-64": ("hf:convnext?hidden_sizes=64,128,256,512&depths=3,3,9,3&drop_path_rate=0", 128),
    "swin-160": (
        "hf:swin?embed_dim=160&depths=2,2,6,2&num_heads=5,10,20,40&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        64,
    ),
    "whisper-640": (
        "hf:whisper?d_model=640&encoder_layers=5&decoder_layers=5&encoder_attention_heads=10&decoder_attention_heads=10"
        "&encoder_ffn_dim=2560&decoder_ffn_dim=2560&seq=288&dropout=0",
        20,
    ),
    "mamba2-640": (
        "hf:mamba2?hidden_size=640&num_hidden_layers=5&num_heads=20&head_dim=64&n_groups=1&state_size=96"
        "&chunk_size=64&vocab_size=20000&seq=640&pad_token_id=0",
        4,
    ),
    "gemma2-1024": (
        f"hf:gemma2?hidden_size=1024&intermediate_size=6144&num_attention_heads=8&num_key_value_heads=4&head_dim=128"
        f"&vocab_size=48000&{TEXT}&pad_token_id=0",
        7,
    ),
    "qwen2-1280": (
        f"hf:qwen2?hidden_size=1280&intermediate_size=6912&num_attention_heads=10&num_key_value_heads=2"
        f"&vocab_size=44000&{TEXT}",
        7,
    ),
    "olmo2": (
        f"hf:olmo2?hidden_size=1152&intermediate_size=4608&num_attention_heads=9&num_key_value_heads=9"
        f"&vocab_size=40000&{TEXT}",
        8,
    ),
    "neox-1280": (
        f"hf:gpt_neox?hidden_size=1280&intermediate_size=5120&num_attention_heads=20&vocab_size=46080&{TEXT}",
        8,
    ),
    "opt-1536": (
        f"hf:opt?hidden_size=1536&ffn_dim=6144&num_attention_heads=24&word_embed_proj_dim=1536&vocab_size=46080&{TEXT}"
        "&dropout=0&pad_token_id=1",
        6,
    ),
    "bert-1152": (
        "hf:bert?hidden_size=1152&intermediate_size=4608&num_attention_heads=18&num_hidden_layers=7&vocab_size=30528"
        "&seq=448&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        24,
    ),
    "dinov2-1024": (
        "hf:dinov2?hidden_size=1024&num_attention_heads=16&num_hidden_layers=8&image_size=224&patch_size=14"
        "&drop_path_rate=0",
        64,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of 20 to 200 ms on an H200."""

COMPILED = (
    *(("dit-896", "bf16"), ("qwen2-1280", "bf16"), ("neox-1280", "bf16"), ("dinov2-1024", "bf16")),
    *(("gemma2-1024", "bf16"), ("bert-1152", "bf16"), ("olmo2", "bf16"), ("qwen2-1280", "fp32")),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    return Case(reference, batch, "bf16" if precision == "bf16" else "fp32", compiled)
