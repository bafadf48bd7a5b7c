"""The models that `bench/step_accuracy.py` is judged by, the fifth such list. It was fixed before any of them was
measured; prices are made on others (`bench/step/diagnose.py`, `seen.py`).

Batches keep a device busy: steps of the fourth list took 20 to 40 ms in half precision, less than
a host with busy neighbours needs at times to ask for them."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=6&seq=1152"
JUDGED = {
    "dit-1280": ("dit?layers=6&hidden=1280&heads=20&size=32&patch=2", 120),
    "convnext-72": ("hf:convnext?hidden_sizes=72,144,288,576&depths=3,3,6,3&drop_path_rate=0", 288),
    "swin-224": (
        "hf:swin?embed_dim=224&depths=2,2,4,2&num_heads=7,14,28,56&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        96,
    ),
    "whisper-896": (
        "hf:whisper?d_model=896&encoder_layers=4&decoder_layers=4&encoder_attention_heads=14&decoder_attention_heads=14"
        "&encoder_ffn_dim=3584&decoder_ffn_dim=3584&seq=224&dropout=0",
        42,
    ),
    "mamba2-896": (
        "hf:mamba2?hidden_size=896&num_hidden_layers=4&num_heads=28&head_dim=64&n_groups=1&state_size=64"
        "&chunk_size=128&vocab_size=28000&seq=640&pad_token_id=0",
        18,
    ),
    "gemma2-1536": (
        f"hf:gemma2?hidden_size=1536&intermediate_size=6144&num_attention_heads=8&num_key_value_heads=4&head_dim=192"
        f"&vocab_size=40000&{TEXT}&pad_token_id=0",
        12,
    ),
    "qwen3-1280": (
        f"hf:qwen3?hidden_size=1280&intermediate_size=4096&num_attention_heads=10&num_key_value_heads=5&head_dim=128"
        f"&vocab_size=42000&{TEXT}",
        15,
    ),
    "phi3": (
        f"hf:phi3?hidden_size=1536&intermediate_size=4096&num_attention_heads=16&num_key_value_heads=16"
        f"&vocab_size=32064&{TEXT}&pad_token_id=0&resid_pdrop=0&embd_pdrop=0&attention_dropout=0",
        15,
    ),
    "stablelm": (
        f"hf:stablelm?hidden_size=1280&intermediate_size=3456&num_attention_heads=20&num_key_value_heads=20"
        f"&vocab_size=50304&{TEXT}&hidden_dropout=0&attention_dropout=0",
        15,
    ),
    "olmo": (
        f"hf:olmo?hidden_size=1408&intermediate_size=5632&num_attention_heads=11&num_key_value_heads=11"
        f"&vocab_size=36096&{TEXT}",
        15,
    ),
    "roberta-1152": (
        "hf:roberta?hidden_size=1152&intermediate_size=4608&num_attention_heads=18&num_hidden_layers=7&vocab_size=40000"
        "&seq=320&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        75,
    ),
    "vit-1152": (
        "hf:vit?hidden_size=1152&intermediate_size=4608&num_attention_heads=18&num_hidden_layers=8&image_size=224"
        "&patch_size=16&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        180,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of about 40 to 150 ms on an H200."""

COMPILED = (
    *(("dit-1280", "bf16"), ("qwen3-1280", "bf16"), ("phi3", "bf16"), ("vit-1152", "bf16")),
    *(("gemma2-1536", "bf16"), ("roberta-1152", "bf16"), ("olmo", "bf16"), ("qwen3-1280", "fp32")),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself. Of those on it, fp32 takes a third of the batch: it is many
    times slower."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    half = precision == "bf16"
    return Case(reference, batch if half or name in SEEN else batch // 3, "bf16" if half else "fp32", compiled)
