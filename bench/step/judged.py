"""The models that `bench/step_accuracy.py` is judged by, the third such list. It was fixed before any of them was
measured; prices are made on others (`bench/step/diagnose.py`, `seen.py`)."""

from __future__ import annotations

from bench.step.planned import Case
from bench.step.seen import SEEN

TEXT = "num_hidden_layers=5&seq=1024"
JUDGED = {
    "dit-xl/2": ("dit?layers=5&hidden=1152&heads=16&size=32&patch=2", 64),
    "convnext-n": ("hf:convnext?hidden_sizes=80,160,320,640&depths=2,2,8,2&drop_path_rate=0", 96),
    "swin-l": (
        "hf:swin?embed_dim=192&depths=2,2,4,2&num_heads=6,12,24,48&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        40,
    ),
    "whisper-b": (
        "hf:whisper?d_model=512&encoder_layers=6&decoder_layers=6&encoder_attention_heads=8&decoder_attention_heads=8"
        "&encoder_ffn_dim=2048&decoder_ffn_dim=2048&seq=320&dropout=0",
        24,
    ),
    "mamba2-s": (
        "hf:mamba2?hidden_size=512&num_hidden_layers=5&num_heads=16&head_dim=64&n_groups=1&state_size=128"
        "&chunk_size=64&vocab_size=24000&seq=768&pad_token_id=0",
        4,
    ),
    "gemma3": (
        f"hf:gemma3_text?hidden_size=1280&intermediate_size=5120&num_attention_heads=5&num_key_value_heads=1"
        f"&head_dim=256&vocab_size=40000&{TEXT}&pad_token_id=0",
        6,
    ),
    "qwen3-l": (
        f"hf:qwen3?hidden_size=2048&intermediate_size=6144&num_attention_heads=16&num_key_value_heads=8&head_dim=128"
        f"&vocab_size=36000&{TEXT}",
        4,
    ),
    "starcoder2": (
        f"hf:starcoder2?hidden_size=1536&intermediate_size=6144&num_attention_heads=12&num_key_value_heads=2"
        f"&vocab_size=49152&{TEXT}&residual_dropout=0&embedding_dropout=0&attention_dropout=0",
        6,
    ),
    "gptj": (
        "hf:gptj?n_embd=1280&n_head=10&n_layer=6&rotary_dim=64&vocab_size=50400&seq=768&resid_pdrop=0&embd_pdrop=0"
        "&attn_pdrop=0",
        8,
    ),
    "electra": (
        "hf:electra?hidden_size=640&embedding_size=128&intermediate_size=2560&num_attention_heads=10"
        "&num_hidden_layers=12&vocab_size=30528&seq=448&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        32,
    ),
    "pegasus": (
        "hf:pegasus?d_model=896&encoder_layers=5&decoder_layers=5&encoder_attention_heads=14&decoder_attention_heads=14"
        "&encoder_ffn_dim=3584&decoder_ffn_dim=3584&vocab_size=48000&seq=512&dropout=0&attention_dropout=0",
        12,
    ),
    "beit": (
        "hf:beit?hidden_size=896&intermediate_size=3584&num_attention_heads=14&num_hidden_layers=8&image_size=224"
        "&patch_size=16&drop_path_rate=0&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        64,
    ),
    "granite": (
        f"hf:granite?hidden_size=1152&intermediate_size=4608&num_attention_heads=18&num_key_value_heads=6"
        f"&vocab_size=44000&{TEXT}&attention_dropout=0",
        7,
    ),
    "distilbert": (
        "hf:distilbert?dim=1024&hidden_dim=4096&n_heads=16&n_layers=6&vocab_size=30528&seq=320&dropout=0"
        "&attention_dropout=0&seq_classif_dropout=0&qa_dropout=0",
        40,
    ),
}
"""Name: reference (`bench.step.models`), batch. Steps of 20 to 200 ms on an H200."""

COMPILED = (
    *(("dit-xl/2", "bf16"), ("qwen3-l", "bf16"), ("gptj", "bf16"), ("beit", "bf16"), ("gemma3", "bf16")),
    *(("electra", "bf16"), ("granite", "bf16"), ("qwen3-l", "fp32")),
)
"""Those that are compiled too, unless all are asked for: compiling takes minutes."""


def case_of(name: str, precision: str, compiled: bool) -> Case:
    """One that is not on the list is a reference itself."""
    reference, batch = (SEEN | JUDGED).get(name, (name, 8))
    return Case(reference, batch, "bf16" if precision == "bf16" else "fp32", compiled)
