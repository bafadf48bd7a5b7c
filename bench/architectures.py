"""Real architectures of `transformers` (and U-Nets) at small sizes: which can be captured and profiled, and why not.

    python bench/architectures.py [--only gpt2,t5] [--run] [--resume] [--limit 300] [--json out/architectures.json]

Each has a process of its own with a limit of CPU seconds. It is built on meta in training mode with its loss,
captured, verified, and profiled for both kinds of device in fp32 and for the GPU in bf16. `--run` also executes
Program and model on real tensors and compares loss and gradients. At least 70 of the 77 must pass. The JSON is written
after each; `--resume` keeps the rows that it has (those that were compared, with `--run`) and tries the others.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import json
import multiprocessing
import resource
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401  (imported once, before processes are forked)

from meshwright.capture import capture
from meshwright.capture.execute import run
from meshwright.errors import MeshwrightError
from meshwright.models.reference import Reference, parse_reference
from meshwright.profile import profile_step

WANTED = 70
TEXT = "hidden_size=32&num_attention_heads=4&num_hidden_layers=3&vocab_size=64&seq=32"
GATED = f"{TEXT}&intermediate_size=64"
GROUPED = f"{GATED}&num_key_value_heads=2"
EXPERTS = f"{GROUPED}&moe_intermediate_size=32&num_experts=4&num_experts_per_tok=2"
PADDED = f"{GROUPED}&pad_token_id=0"
SMALL_SEQ2SEQ = (
    "d_model=32&encoder_layers=3&decoder_layers=3&encoder_attention_heads=4&decoder_attention_heads=4"
    "&encoder_ffn_dim=64&decoder_ffn_dim=64&vocab_size=64&seq=32&pad_token_id=0&max_position_embeddings=64&dropout=0.0"
)
VISION = "hidden_size=32&num_attention_heads=4&num_hidden_layers=3&intermediate_size=64&image_size=32&patch_size=8"
TOWERS = (
    "text_config.hidden_size=32&text_config.num_attention_heads=4&text_config.num_hidden_layers=3"
    "&text_config.intermediate_size=64&text_config.vocab_size=64&vision_config.hidden_size=32"
    "&vision_config.num_attention_heads=4&vision_config.num_hidden_layers=3&vision_config.intermediate_size=64"
    "&vision_config.image_size=32&vision_config.patch_size=8&seq=24"
)
SPEECH = (
    "hidden_size=32&num_attention_heads=4&num_hidden_layers=3&intermediate_size=64&vocab_size=32&layerdrop=0"
    "&apply_spec_augment=false&hidden_dropout=0&attention_dropout=0&activation_dropout=0&feat_proj_dropout=0"
    "&final_dropout=0"
)
IMAGE_TOKEN, IMAGE_TOKENS = 63, 16
"""What stands in a text for an image, and how many of it: one per patch."""

ARCHITECTURES: dict[str, str] = {
    "gpt2": TEXT, "gpt_neo": "hidden_size=32&num_heads=4&vocab_size=64&seq=32",
    "gptj": f"{TEXT}&rotary_dim=4", "gpt_neox": GATED, "gpt_bigcode": TEXT, "codegen": f"{TEXT}&rotary_dim=4",
    "mpt": "d_model=32&n_heads=4&n_layers=3&vocab_size=64&seq=32",
    "opt": f"{TEXT}&ffn_dim=64&word_embed_proj_dim=32&pad_token_id=0&dropout=0.0", "bloom": TEXT, "llama": GROUPED,
    "mistral": GROUPED, "qwen2": GROUPED, "olmo2": PADDED, "stablelm": GROUPED, "granite": GROUPED,
    "starcoder2": GROUPED, "phi": GROUPED, "phi3": PADDED, "cohere": PADDED, "smollm3": PADDED,
    "ernie4_5": GROUPED, "qwen3": f"{GROUPED}&head_dim=8", "gemma": f"{PADDED}&head_dim=8",
    "gemma2": f"{PADDED}&head_dim=8", "gemma3_text": f"{PADDED}&head_dim=8", "glm": f"{PADDED}&head_dim=8",
    "falcon": TEXT,
    "deepseek_v3": f"{PADDED}&num_key_value_heads=4&moe_intermediate_size=32&n_routed_experts=8&num_experts_per_tok=2"
    "&n_group=2&topk_group=1&first_k_dense_replace=1&q_lora_rank=16&kv_lora_rank=16&qk_rope_head_dim=8"
    "&qk_nope_head_dim=8&v_head_dim=8&head_dim=8",
    "mixtral": f"{GROUPED}&num_local_experts=4", "qwen2_moe": f"{EXPERTS}&shared_expert_intermediate_size=32",
    "qwen3_moe": EXPERTS, "olmoe": f"{PADDED}&num_experts=4&num_experts_per_tok=2",
    "granitemoe": f"{GROUPED}&num_local_experts=4&num_experts_per_tok=2",
    "glm4_moe": f"{PADDED}&moe_intermediate_size=32&n_routed_experts=4&num_experts_per_tok=2"
    "&first_k_dense_replace=1",
    "gpt_oss": f"{PADDED}&head_dim=8&num_local_experts=4&num_experts_per_tok=2",
    "llama4_text": f"{PADDED}&head_dim=8&num_local_experts=4&intermediate_size_mlp=64",
    "jamba": f"{PADDED}&num_hidden_layers=4&num_experts=4&num_experts_per_tok=2&attn_layer_period=2"
    "&attn_layer_offset=1&expert_layer_period=2&expert_layer_offset=1&mamba_dt_rank=4&use_mamba_kernels=false",
    "mamba": "hidden_size=32&num_hidden_layers=3&vocab_size=64&seq=48&time_step_rank=4",
    "mamba2": "hidden_size=32&num_hidden_layers=3&vocab_size=64&seq=48&num_heads=8&head_dim=8&n_groups=2"
    "&state_size=16&chunk_size=16&pad_token_id=0",
    "falcon_mamba": "hidden_size=32&num_hidden_layers=3&vocab_size=64&seq=48&time_step_rank=4",
    "bamba": f"{PADDED}&mamba_n_heads=8&mamba_d_head=8&mamba_n_groups=2&mamba_d_state=16&mamba_chunk_size=16",
    "qwen3_next": f"{EXPERTS}&num_hidden_layers=4&head_dim=8&linear_num_key_heads=2&linear_num_value_heads=4"
    "&linear_key_head_dim=8&linear_value_head_dim=8&shared_expert_intermediate_size=32&pad_token_id=0",
    "rwkv": "hidden_size=32&attention_hidden_size=32&intermediate_size=64&num_hidden_layers=3&vocab_size=64&seq=48",
    "bert": GATED, "albert": f"{GATED}&embedding_size=16&pad_token_id=0", "electra": f"{GATED}&embedding_size=32",
    "deberta-v2": f"{GATED}&relative_attention=true&hidden_dropout_prob=0&attention_probs_dropout_prob=0",
    "roberta": GATED, "mpnet": GATED, "distilbert": "dim=32&n_heads=4&n_layers=3&hidden_dim=64&vocab_size=64&seq=32",
    "modernbert": f"{GATED}&pad_token_id=0&cls_token_id=1&sep_token_id=2&bos_token_id=1&eos_token_id=2",
    "longformer": f"{GATED}&attention_window=8",
    "xlnet": "d_model=32&n_head=4&n_layer=3&d_inner=64&vocab_size=64&seq=32&dropout=0",
    "t5": "d_model=32&d_kv=8&d_ff=64&num_layers=3&num_heads=4&vocab_size=64&seq=32",
    "bart": SMALL_SEQ2SEQ, "mbart": SMALL_SEQ2SEQ, "pegasus": SMALL_SEQ2SEQ,
    "marian": f"{SMALL_SEQ2SEQ}&decoder_start_token_id=1",
    "whisper": f"{SMALL_SEQ2SEQ.replace('&max_position_embeddings=64', '')}&max_source_positions=32"
    "&max_target_positions=48&num_mel_bins=16&decoder_start_token_id=1&bos_token_id=1&eos_token_id=2",
    "vit": VISION, "deit": VISION, "beit": VISION, "dinov2": VISION.replace("&intermediate_size=64", ""),
    "swin": "image_size=32&patch_size=2&embed_dim=16&window_size=4&depths=2,2&num_heads=2,4",
    "swinv2": "image_size=32&patch_size=2&embed_dim=16&window_size=4&depths=2,2&num_heads=2,4",
    "convnext": "image_size=32&hidden_sizes=8,16,16,16&depths=1,1,3,1",
    "resnet": "embedding_size=8&hidden_sizes=16,32&depths=2,3", "regnet": "embedding_size=8&hidden_sizes=16,32"
    "&depths=2,3&groups_width=8",
    "segformer": "hidden_sizes=8,16,16,32&depths=1,1,1,1&num_attention_heads=1,2,2,4",
    "clip": f"{TOWERS}&projection_dim=32&text_config.max_position_embeddings=32&text_config.eos_token_id=2",
    "siglip": f"{TOWERS}&text_config.max_position_embeddings=24&text_config.projection_size=32",
    "wav2vec2": SPEECH, "hubert": SPEECH,
    "blip": f"{TOWERS}&projection_dim=32&text_config.projection_dim=32&text_config.encoder_hidden_size=32",
    "llava": f"{TOWERS}&image_token_index={IMAGE_TOKEN}",
    "unet2d": "", "unet2d_cond": "",
}  # fmt: skip


Row = dict[str, Any]
"""name, ok, cpu_s, and for those that pass ops, segments, distinct, coupled, equal; note: what there is to say."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--run", action="store_true", help="also execute and compare")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has written")
    parser.add_argument("--limit", type=int, default=300, help="CPU seconds for each")
    parser.add_argument("--json", metavar="FILE", default="out/architectures.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = args.only.split(",") if args.only else list(ARCHITECTURES)
    path = Path(args.json)
    done = known(path, args.run) if args.resume else {}
    for name in names:
        if name not in done:
            done[name] = child(name, args.run, args.limit)
            write(path, done)
        print(line(done[name]), flush=True)
    rows = [done[name] for name in names]
    good = sum(row["ok"] for row in rows)
    print(f"{good} of {len(rows)} architectures capture, verify and profile")
    for row in rows:
        if not row["ok"]:
            print(f"  not {row['name']}: {row['note']}")
    return 0 if good >= min(WANTED, len(rows)) else 1


def known(path: Path, executed: bool) -> dict[str, Row]:
    """The rows of an earlier run that are as much as is asked for now."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row for row in rows if not executed or row.get("equal") or not row["ok"]}


def write(path: Path, done: dict[str, Row]) -> None:
    found = {"passed": sum(row["ok"] for row in done.values()), "tried": len(done), "rows": list(done.values())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def child(name: str, execute: bool, limit_s: int) -> Row:
    """One architecture in a process of its own, forked when everything is imported; what it dies of is its reason."""
    here, there = multiprocessing.Pipe(duplex=False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        there.send(try_one(name, execute))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    there.close()
    try:
        row: Row = here.recv()
    except EOFError:
        row = {"name": name, "ok": False, "cpu_s": float(limit_s), "note": f"died, or over {limit_s} CPU seconds"}
    process.join()
    return row


def try_one(name: str, execute: bool) -> Row:
    start_s = time.process_time()
    try:
        if name.startswith("unet2d"):
            raise MeshwrightError("it comes from `diffusers`, which is not a dependency")
        reference = parse_reference(f"hf:{name}?{ARCHITECTURES[name]}")
        model, batch, loss = reference.meta(2)
        program = capture(model, batch, loss, keyed=False)
        program.verify()
        profile_step(program, device="cpu").verify()
        found = profile_step(program, device="cuda")
        found.verify()
        profile_step(capture(model, batch, loss, precision="bf16", keyed=False), device="cuda").verify()
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {"name": name, "ok": False, "cpu_s": time.process_time() - start_s, "note": reason[:300]}
    return {
        "name": name,
        "ok": True,
        "cpu_s": time.process_time() - start_s,
        "ops": len(program.prologue.ops) + sum(1 for _ in program.ops()),
        "segments": len(program.segments),
        "distinct": len(program.graphs),
        "params": found.params,
        "peak_bytes": found.peak_bytes,
        "coupled": len(program.couples_samples),
        "equal": compare(reference) if execute else "",
        "note": "; ".join((*program.warnings, *program.notes)),
    }


def compare(reference: Reference) -> str:
    """`=` where loss and gradients are bit-equal, else the worst gradient relative to its largest element."""
    try:
        return _compare(reference)
    except Exception as error:
        return f"not compared: {error}"[:80]


def _compare(reference: Reference) -> str:
    torch.manual_seed(0)
    model = reference.build()
    batch = {
        key: torch.randint(3, 30, shape) if dtype == "int64" else torch.randn(shape)
        for key, (shape, dtype) in reference.shapes(2).items()
    }
    if "labels" in batch and batch["labels"].dim() == 1:
        batch["labels"] %= 2
    if reference.family.name == "hf:llava":
        batch["input_ids"][:, :IMAGE_TOKENS] = IMAGE_TOKEN
    loss_of = reference.family.loss
    program = capture(model, batch, loss_of, keyed=False)
    tensors = dict(model.named_parameters()) | {key: value.clone() for key, value in model.named_buffers()}
    names = [parameter.name for parameter in program.parameters if parameter.trainable]
    torch.manual_seed(1)
    found, _ = run(program, tensors, batch, torch.device("cpu"))
    torch.manual_seed(1)
    output = model(**batch)
    true = loss_of(output) if loss_of else output.loss
    if not torch.equal(found, true):
        return f"loss {found.item():.7g} for {true.item():.7g}"
    mine = torch.autograd.grad(found, [tensors[key] for key in names], allow_unused=True)
    theirs = torch.autograd.grad(true, [tensors[key] for key in names], allow_unused=True)
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
    worst = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)
    return "=" if worst == 0 else f"{worst:.0e}"


def line(row: Row) -> str:
    if not row["ok"]:
        return f"{row['name']:<14} no  {row['cpu_s']:6.1f} s  {row['note']}"
    counts = f"{row['ops']:5} ops {row['segments']:3} segments {row['distinct']:3} distinct {row['coupled']:2} couple"
    return f"{row['name']:<14} yes {row['cpu_s']:6.1f} s {counts} {row['equal']:>6}  {row['note'][:160]}"


if __name__ == "__main__":
    sys.exit(main())
