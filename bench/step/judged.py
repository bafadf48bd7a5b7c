"""The models that `bench/step_accuracy.py` is judged by, the eighth such list. It was fixed before any of them was
measured; prices are made on others (`bench/step/diagnose.py`, `seen.py`).

Batches keep a device busy: steps of the fourth list took 20 to 40 ms in half precision, less than
a host with busy neighbours needs at times to ask for them."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=6&seq=1056"
JUDGED = {
    "dit-1280": ("dit?layers=6&hidden=1280&heads=20&size=32&patch=2", 108),
    "convnext-120": ("hf:convnext?hidden_sizes=120,240,480,960&depths=2,2,5,2&drop_path_rate=0", 192),
    "swin-160": (
        "hf:swin?embed_dim=160&depths=2,2,4,2&num_heads=5,10,20,40&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        126,
    ),
    "whisper-960": (
        "hf:whisper?d_model=960&encoder_layers=4&decoder_layers=3&encoder_attention_heads=15"
        "&decoder_attention_heads=15&encoder_ffn_dim=3840&decoder_ffn_dim=3840&seq=176&dropout=0",
        36,
    ),
    "mamba2-896": (
        "hf:mamba2?hidden_size=896&num_hidden_layers=3&num_heads=28&head_dim=64&n_groups=1&state_size=64"
        "&chunk_size=128&vocab_size=28000&seq=512&pad_token_id=0",
        18,
    ),
    "gemma2-1536": (
        f"hf:gemma2?hidden_size=1536&intermediate_size=5888&num_attention_heads=12&num_key_value_heads=6&head_dim=128"
        f"&vocab_size=42048&{TEXT}&pad_token_id=0",
        12,
    ),
    "qwen2-1664": (
        f"hf:qwen2?hidden_size=1664&intermediate_size=4480&num_attention_heads=13&num_key_value_heads=13"
        f"&vocab_size=35072&{TEXT}",
        15,
    ),
    "smollm3-1536": (
        f"hf:smollm3?hidden_size=1536&intermediate_size=5120&num_attention_heads=12&num_key_value_heads=4"
        f"&vocab_size=44032&{TEXT}&pad_token_id=0",
        15,
    ),
    "persimmon": (
        f"hf:persimmon?hidden_size=1408&intermediate_size=5632&num_attention_heads=22&vocab_size=38912&{TEXT}"
        "&hidden_dropout=0&attention_dropout=0",
        15,
    ),
    "glm-1280": (
        f"hf:glm?hidden_size=1280&intermediate_size=4864&num_attention_heads=10&num_key_value_heads=5&head_dim=128"
        f"&vocab_size=47104&{TEXT}&pad_token_id=0&attention_dropout=0",
        15,
    ),
    "xlm-roberta-1280": (
        "hf:xlm-roberta?hidden_size=1280&intermediate_size=5120&num_attention_heads=20&num_hidden_layers=6"
        "&vocab_size=36000&seq=288&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        72,
    ),
    "ijepa-1216": (
        "hf:ijepa?hidden_size=1216&intermediate_size=4864&num_attention_heads=19&num_hidden_layers=8&image_size=208"
        "&patch_size=16&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        180,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of about 40 to 150 ms on an H200."""

COMPILED = (
    *(("dit-1280", "bf16"), ("qwen2-1664", "bf16"), ("smollm3-1536", "bf16"), ("ijepa-1216", "bf16")),
    *(("gemma2-1536", "bf16"), ("xlm-roberta-1280", "bf16"), ("persimmon", "bf16"), ("glm-1280", "fp32")),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself. Of those on it, fp32 takes a third of the batch: it is many
    times slower."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    half = precision == "bf16"
    return Case(reference, batch if half or name in SEEN else batch // 3, "bf16" if half else "fp32", compiled)
