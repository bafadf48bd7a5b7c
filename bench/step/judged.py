"""The models that `bench/step_accuracy.py` is judged by, the sixth such list. It was fixed before any of them was
measured; prices are made on others (`bench/step/diagnose.py`, `seen.py`).

Batches keep a device busy: steps of the fourth list took 20 to 40 ms in half precision, less than
a host with busy neighbours needs at times to ask for them."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=6&seq=1088"
JUDGED = {
    "dit-1408": ("dit?layers=5&hidden=1408&heads=22&size=32&patch=2", 108),
    "convnext-88": ("hf:convnext?hidden_sizes=88,176,352,704&depths=3,3,6,3&drop_path_rate=0", 240),
    "swin-192": (
        "hf:swin?embed_dim=192&depths=2,2,4,2&num_heads=6,12,24,48&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        108,
    ),
    "whisper-1024": (
        "hf:whisper?d_model=1024&encoder_layers=3&decoder_layers=3&encoder_attention_heads=16"
        "&decoder_attention_heads=16&encoder_ffn_dim=4096&decoder_ffn_dim=4096&seq=208&dropout=0",
        42,
    ),
    "mamba2-1152": (
        "hf:mamba2?hidden_size=1152&num_hidden_layers=3&num_heads=36&head_dim=64&n_groups=1&state_size=64"
        "&chunk_size=128&vocab_size=24000&seq=512&pad_token_id=0",
        18,
    ),
    "gemma2-1280": (
        f"hf:gemma2?hidden_size=1280&intermediate_size=5120&num_attention_heads=10&num_key_value_heads=5&head_dim=128"
        f"&vocab_size=48000&{TEXT}&pad_token_id=0",
        12,
    ),
    "qwen2-1408": (
        f"hf:qwen2?hidden_size=1408&intermediate_size=3840&num_attention_heads=11&num_key_value_heads=11"
        f"&vocab_size=38016&{TEXT}",
        15,
    ),
    "mistral-1536": (
        f"hf:mistral?hidden_size=1536&intermediate_size=5376&num_attention_heads=12&num_key_value_heads=4&head_dim=128"
        f"&vocab_size=34048&{TEXT}",
        15,
    ),
    "cohere": (
        f"hf:cohere?hidden_size=1280&intermediate_size=4480&num_attention_heads=20&num_key_value_heads=10"
        f"&vocab_size=45056&{TEXT}&pad_token_id=0",
        15,
    ),
    "gpt2-1344": (
        "hf:gpt2?n_embd=1344&n_head=21&n_layer=7&n_positions=1024&vocab_size=50304&seq=960&resid_pdrop=0&embd_pdrop=0"
        "&attn_pdrop=0",
        18,
    ),
    "ernie-1088": (
        "hf:ernie?hidden_size=1088&intermediate_size=4352&num_attention_heads=17&num_hidden_layers=8&vocab_size=32000"
        "&seq=384&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        60,
    ),
    "registers-1152": (
        "hf:dinov2_with_registers?hidden_size=1152&num_attention_heads=18&num_hidden_layers=7&image_size=224"
        "&patch_size=14&drop_path_rate=0",
        120,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of about 40 to 150 ms on an H200."""

COMPILED = (
    *(("dit-1408", "bf16"), ("qwen2-1408", "bf16"), ("mistral-1536", "bf16"), ("registers-1152", "bf16")),
    *(("gemma2-1280", "bf16"), ("ernie-1088", "bf16"), ("cohere", "bf16"), ("gpt2-1344", "fp32")),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself. Of those on it, fp32 takes a third of the batch: it is many
    times slower."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    half = precision == "bf16"
    return Case(reference, batch if half or name in SEEN else batch // 3, "bf16" if half else "fp32", compiled)
