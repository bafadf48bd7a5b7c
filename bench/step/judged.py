"""The models that `bench/step_accuracy.py` is judged by, the seventh such list. It was fixed before any of them was
measured; prices are made on others (`bench/step/diagnose.py`, `seen.py`).

Batches keep a device busy: steps of the fourth list took 20 to 40 ms in half precision, less than
a host with busy neighbours needs at times to ask for them."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=6&seq=1024"
JUDGED = {
    "dit-1536": ("dit?layers=4&hidden=1536&heads=24&size=32&patch=2", 108),
    "convnext-104": ("hf:convnext?hidden_sizes=104,208,416,832&depths=2,2,6,2&drop_path_rate=0", 216),
    "swin-128": (
        "hf:swin?embed_dim=128&depths=2,2,6,2&num_heads=4,8,16,32&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        150,
    ),
    "whisper-1152": (
        "hf:whisper?d_model=1152&encoder_layers=3&decoder_layers=2&encoder_attention_heads=18"
        "&decoder_attention_heads=18&encoder_ffn_dim=4608&decoder_ffn_dim=4608&seq=192&dropout=0",
        36,
    ),
    "mamba2-1024": (
        "hf:mamba2?hidden_size=1024&num_hidden_layers=3&num_heads=32&head_dim=64&n_groups=1&state_size=64"
        "&chunk_size=128&vocab_size=26000&seq=512&pad_token_id=0",
        18,
    ),
    "gemma-1664": (
        f"hf:gemma?hidden_size=1664&intermediate_size=5632&num_attention_heads=13&num_key_value_heads=13&head_dim=128"
        f"&vocab_size=36000&{TEXT}&pad_token_id=0",
        15,
    ),
    "qwen3-1536": (
        f"hf:qwen3?hidden_size=1536&intermediate_size=4608&num_attention_heads=12&num_key_value_heads=4&head_dim=128"
        f"&vocab_size=40064&{TEXT}",
        15,
    ),
    "llama-1408": (
        f"hf:llama?hidden_size=1408&intermediate_size=4864&num_attention_heads=22&num_key_value_heads=11"
        f"&vocab_size=37120&{TEXT}",
        15,
    ),
    "nemotron": (
        f"hf:nemotron?hidden_size=1536&intermediate_size=6144&num_attention_heads=16&num_key_value_heads=8"
        f"&vocab_size=32000&{TEXT}&pad_token_id=0",
        15,
    ),
    "gpt-bigcode": (
        "hf:gpt_bigcode?n_embd=1280&n_head=20&n_layer=7&n_positions=1024&n_inner=5120&vocab_size=49152&seq=992"
        "&resid_pdrop=0&embd_pdrop=0&attn_pdrop=0",
        18,
    ),
    "camembert-1216": (
        "hf:camembert?hidden_size=1216&intermediate_size=4864&num_attention_heads=19&num_hidden_layers=7"
        "&vocab_size=32000&seq=352&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        60,
    ),
    "vit-msn-1088": (
        "hf:vit_msn?hidden_size=1088&intermediate_size=4352&num_attention_heads=17&num_hidden_layers=9&image_size=240"
        "&patch_size=16&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        150,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of about 40 to 150 ms on an H200."""

COMPILED = (
    *(("dit-1536", "bf16"), ("qwen3-1536", "bf16"), ("llama-1408", "bf16"), ("vit-msn-1088", "bf16")),
    *(("gemma-1664", "bf16"), ("camembert-1216", "bf16"), ("nemotron", "bf16"), ("gpt-bigcode", "fp32")),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself. Of those on it, fp32 takes a third of the batch: it is many
    times slower."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    half = precision == "bf16"
    return Case(reference, batch if half or name in SEEN else batch // 3, "bf16" if half else "fp32", compiled)
