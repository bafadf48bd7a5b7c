"""Models that steps were judged by before; `bench/step/diagnose.py` has looked at them since."""

from __future__ import annotations

TEXT, SECOND, THIRD = (f"num_hidden_layers={layers}&seq=1024" for layers in (8, 6, 5))
"""Of the first list, the second (and the seventh) and the third."""
FOURTH = "num_hidden_layers=7&seq=896"
FIFTH = "num_hidden_layers=6&seq=1152"
SIXTH = "num_hidden_layers=6&seq=1088"

SEEN = {
    "dit-b/2": ("dit?layers=12&hidden=768&heads=12&size=32&patch=2", 64),
    "convnext": ("hf:convnext?hidden_sizes=96,192,384,768&depths=3,3,9,3&drop_path_rate=0", 64),
    "swin": (
        "hf:swin?embed_dim=96&depths=2,2,6,2&num_heads=3,6,12,24&drop_path_rate=0&hidden_dropout_prob=0"
        "&attention_probs_dropout_prob=0",
        64,
    ),
    "whisper": (
        "hf:whisper?d_model=768&encoder_layers=6&decoder_layers=6&encoder_attention_heads=12&decoder_attention_heads=12"
        "&encoder_ffn_dim=3072&decoder_ffn_dim=3072&seq=256&dropout=0",
        16,
    ),
    "mamba2": (
        "hf:mamba2?hidden_size=768&num_hidden_layers=6&num_heads=24&head_dim=64&n_groups=1&state_size=64&chunk_size=128"
        "&vocab_size=16000&seq=512&pad_token_id=0",
        4,
    ),
    "gemma2": (
        f"hf:gemma2?hidden_size=1152&intermediate_size=4608&num_attention_heads=4&num_key_value_heads=2&head_dim=256"
        f"&vocab_size=64000&{TEXT}&pad_token_id=0",
        4,
    ),
    "qwen2": (
        f"hf:qwen2?hidden_size=896&intermediate_size=4864&num_attention_heads=14&num_key_value_heads=2"
        f"&vocab_size=32000&{TEXT}",
        8,
    ),
    "qwen3": (
        f"hf:qwen3?hidden_size=1024&intermediate_size=3072&num_attention_heads=16&num_key_value_heads=8&head_dim=128"
        f"&vocab_size=32000&{TEXT}",
        8,
    ),
    "gpt-neox": (
        f"hf:gpt_neox?hidden_size=1024&intermediate_size=4096&num_attention_heads=16&vocab_size=50304&{TEXT}",
        8,
    ),
    "bert": (
        "hf:bert?hidden_size=768&intermediate_size=3072&num_attention_heads=12&num_hidden_layers=12&vocab_size=30528"
        "&seq=512&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
        24,
    ),
    "t5": (
        "hf:t5?d_model=768&d_kv=64&d_ff=3072&num_layers=6&num_heads=12&vocab_size=32128&seq=512&dropout_rate=0",
        16,
    ),
    "dinov2": (
        "hf:dinov2?hidden_size=768&num_attention_heads=12&num_hidden_layers=12&image_size=224&patch_size=14"
        "&drop_path_rate=0",
        64,
    ),
    "opt": (
        f"hf:opt?hidden_size=1024&ffn_dim=4096&num_attention_heads=16&word_embed_proj_dim=1024&vocab_size=50272&{TEXT}"
        "&dropout=0&pad_token_id=1",
        8,
    ),
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
        f"&vocab_size=48000&{SECOND}&pad_token_id=0",
        6,
    ),
    "qwen2-l": (
        f"hf:qwen2?hidden_size=1536&intermediate_size=8960&num_attention_heads=12&num_key_value_heads=2"
        f"&vocab_size=40000&{SECOND}",
        6,
    ),
    "mistral": (
        f"hf:mistral?hidden_size=1024&intermediate_size=3584&num_attention_heads=16&num_key_value_heads=4"
        f"&vocab_size=32000&{SECOND}",
        12,
    ),
    "phi": (
        f"hf:phi?hidden_size=1024&intermediate_size=4096&num_attention_heads=16&vocab_size=51200&{SECOND}"
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
        f"&head_dim=256&vocab_size=40000&{THIRD}&pad_token_id=0",
        6,
    ),
    "qwen3-l": (
        f"hf:qwen3?hidden_size=2048&intermediate_size=6144&num_attention_heads=16&num_key_value_heads=8&head_dim=128"
        f"&vocab_size=36000&{THIRD}",
        4,
    ),
    "starcoder2": (
        f"hf:starcoder2?hidden_size=1536&intermediate_size=6144&num_attention_heads=12&num_key_value_heads=2"
        f"&vocab_size=49152&{THIRD}&residual_dropout=0&embedding_dropout=0&attention_dropout=0",
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
        f"&vocab_size=44000&{THIRD}&attention_dropout=0",
        7,
    ),
    "distilbert": (
        "hf:distilbert?dim=1024&hidden_dim=4096&n_heads=16&n_layers=6&vocab_size=30528&seq=320&dropout=0"
        "&attention_dropout=0&seq_classif_dropout=0&qa_dropout=0",
        40,
    ),
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
        f"&vocab_size=48000&{FOURTH}&pad_token_id=0",
        7,
    ),
    "qwen2-1280": (
        f"hf:qwen2?hidden_size=1280&intermediate_size=6912&num_attention_heads=10&num_key_value_heads=2"
        f"&vocab_size=44000&{FOURTH}",
        7,
    ),
    "olmo2": (
        f"hf:olmo2?hidden_size=1152&intermediate_size=4608&num_attention_heads=9&num_key_value_heads=9"
        f"&vocab_size=40000&{FOURTH}",
        8,
    ),
    "neox-1280": (
        f"hf:gpt_neox?hidden_size=1280&intermediate_size=5120&num_attention_heads=20&vocab_size=46080&{FOURTH}",
        8,
    ),
    "opt-1536": (
        f"hf:opt?hidden_size=1536&ffn_dim=6144&num_attention_heads=24&word_embed_proj_dim=1536&vocab_size=46080&{FOURTH}"
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
        f"&vocab_size=40000&{FIFTH}&pad_token_id=0",
        12,
    ),
    "qwen3-1280": (
        f"hf:qwen3?hidden_size=1280&intermediate_size=4096&num_attention_heads=10&num_key_value_heads=5&head_dim=128"
        f"&vocab_size=42000&{FIFTH}",
        15,
    ),
    "phi3": (
        f"hf:phi3?hidden_size=1536&intermediate_size=4096&num_attention_heads=16&num_key_value_heads=16"
        f"&vocab_size=32064&{FIFTH}&pad_token_id=0&resid_pdrop=0&embd_pdrop=0&attention_dropout=0",
        15,
    ),
    "stablelm": (
        f"hf:stablelm?hidden_size=1280&intermediate_size=3456&num_attention_heads=20&num_key_value_heads=20"
        f"&vocab_size=50304&{FIFTH}&hidden_dropout=0&attention_dropout=0",
        15,
    ),
    "olmo": (
        f"hf:olmo?hidden_size=1408&intermediate_size=5632&num_attention_heads=11&num_key_value_heads=11"
        f"&vocab_size=36096&{FIFTH}",
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
        f"&vocab_size=48000&{SIXTH}&pad_token_id=0",
        12,
    ),
    "qwen2-1408": (
        f"hf:qwen2?hidden_size=1408&intermediate_size=3840&num_attention_heads=11&num_key_value_heads=11"
        f"&vocab_size=38016&{SIXTH}",
        15,
    ),
    "mistral-1536": (
        f"hf:mistral?hidden_size=1536&intermediate_size=5376&num_attention_heads=12&num_key_value_heads=4&head_dim=128"
        f"&vocab_size=34048&{SIXTH}",
        15,
    ),
    "cohere": (
        f"hf:cohere?hidden_size=1280&intermediate_size=4480&num_attention_heads=20&num_key_value_heads=10"
        f"&vocab_size=45056&{SIXTH}&pad_token_id=0",
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
        f"&vocab_size=36000&{SECOND}&pad_token_id=0",
        15,
    ),
    "qwen3-1536": (
        f"hf:qwen3?hidden_size=1536&intermediate_size=4608&num_attention_heads=12&num_key_value_heads=4&head_dim=128"
        f"&vocab_size=40064&{SECOND}",
        15,
    ),
    "llama-1408": (
        f"hf:llama?hidden_size=1408&intermediate_size=4864&num_attention_heads=22&num_key_value_heads=11"
        f"&vocab_size=37120&{SECOND}",
        15,
    ),
    "nemotron": (
        f"hf:nemotron?hidden_size=1536&intermediate_size=6144&num_attention_heads=16&num_key_value_heads=8"
        f"&vocab_size=32000&{SECOND}&pad_token_id=0",
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
"""Name: reference (`bench.step.models`), batch. Steps of 20 to 200 ms on an H200."""
