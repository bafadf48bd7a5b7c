"""Predicted against measured peak memory of real eager AdamW steps on a GPU.

    python bench/memory_accuracy.py --predict out/predictions.json          # here; needs no GPU
    python bench/memory_accuracy.py --measure out/measured.json             # on the GPU; needs only torch, transformers
    python bench/memory_accuracy.py --compare out/predictions.json out/measured.json

Every model at two batch sizes in fp32 and bf16. Measured: torch.cuda.max_memory_allocated over a whole step (zero_grad,
forward, backward, step) after two warm-up steps. The limits: mean error 3 %, worst 8 %. `--predict` and `--measure`
may be given together where one machine has it all.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

MODELS = {
    "gpt2?dropout=0": (4, 16),
    "gpt2-medium?dropout=0.1": (2, 8),
    "llama?layers=8&hidden=1024&heads=16&kv_heads=4&ffn=4096&vocab=32000&seq=1024": (2, 8),
    "moe?layers=4&hidden=1024&heads=16&kv_heads=4&ffn=2048&vocab=32000&seq=512": (2, 8),
    "bert?seq=512": (4, 16),
    "t5?layers=6": (4, 16),
    "vit": (16, 64),
    "resnet50": (32, 128),
    "unet": (8, 32),
    "mlp?layers=8&hidden=4096&inputs=4096": (512, 4096),
    "hf:gpt2?seq=512": (4, 16),
    "hf:llama?num_hidden_layers=8&hidden_size=1024&num_attention_heads=16&num_key_value_heads=4&intermediate_size=4096"
    "&seq=1024": (2, 8),
    "hf:qwen3?num_hidden_layers=4&hidden_size=1024&num_attention_heads=16&num_key_value_heads=8&intermediate_size=3072"
    "&head_dim=64&seq=512": (2, 8),
    "hf:mixtral?num_hidden_layers=4&hidden_size=1024&num_attention_heads=16&num_key_value_heads=4"
    "&intermediate_size=2048&seq=512": (2, 8),
    "hf:bert?seq=512": (4, 16),
    "hf:t5?seq=256": (4, 16),
    "hf:vit": (16, 64),
    "hf:resnet": (32, 128),
}
PRECISIONS = ("fp32", "bf16")
MEAN_LIMIT, WORST_LIMIT = 0.03, 0.08


def versions() -> dict[str, str]:
    """Models of transformers change with it: predictions and measurements of different versions are of other models."""
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def key(model: str, batch: int, precision: str) -> str:
    return f"{model} batch={batch} {precision}"


def predict(models: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference
    from meshwright.profile import profile_step

    found: dict[str, Any] = {}
    for name, batches in models.items():
        for precision in PRECISIONS:
            start = time.process_time()
            try:
                program = capture(*parse_reference(name).meta(batches[0]), precision=precision, keyed=False)
            except Exception as error:  # one model that cannot be captured is a row, not the end
                print(f"{name} {precision}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            for size in batches:
                profile = profile_step(program.at_batch(size))
                found[key(name, size, precision)] = profile.to_json(time.process_time() - start)
            print(f"{name} {precision}: {time.process_time() - start:.1f} CPU s", file=sys.stderr)
    return versions() | {"cases": found}


def measure(models: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = versions() | {"device": torch.cuda.get_device_name(), "cases": {}}
    for name, batches in models.items():
        for precision in PRECISIONS:
            for size in batches:
                where = key(name, size, precision)
                try:
                    found["cases"][where] = measure_step(name, size, precision)
                except Exception as error:
                    found["cases"][where] = {"error": f"{type(error).__name__}: {error}"[:300]}
                print(where, found["cases"][where], file=sys.stderr, flush=True)
                gc.collect()
                torch.cuda.empty_cache()
    return found


def measure_step(name: str, size: int, precision: str) -> dict[str, int]:
    """Bytes at the peak of a step and of each phase, and in between, as the allocator counts them."""
    import torch

    from meshwright.models.reference import parse_reference

    reference = parse_reference(name)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.device("cuda"):
        model = reference.build().to(dtype).train()
        batch = {n: _tensor(shape, kind, dtype) for n, (shape, kind) in reference.shapes(size).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    marks: dict[str, int] = {}

    def phase(what: str, run: Any) -> Any:
        torch.cuda.reset_peak_memory_stats()
        result = run()
        torch.cuda.synchronize()
        marks[f"{what}_peak_bytes"] = torch.cuda.max_memory_allocated()
        marks[f"{what}_requested_bytes"] = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        marks[f"after_{what}_bytes"] = torch.cuda.memory_allocated()
        return result

    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        marks["start_bytes"] = torch.cuda.memory_allocated()
        loss = phase("forward", lambda: _loss(model(**batch)))
        phase("backward", loss.backward)
        del loss
        phase("optimizer", optimizer.step)
    marks["peak_bytes"] = max(marks[f"{what}_peak_bytes"] for what in ("forward", "backward", "optimizer"))
    return marks


def _tensor(shape: tuple[int, ...], kind: str, dtype: Any) -> Any:
    import torch

    if kind.startswith("float"):
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2, shape, dtype=getattr(torch, kind))


def _loss(result: Any) -> Any:
    import torch

    return result if isinstance(result, torch.Tensor) else result.loss


def compare(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    guesses = predicted["cases"]
    for name in ("torch", "transformers"):
        if predicted[name] != measured.get(name):
            print(
                f"note: predicted with {name} {predicted[name]}, measured with {measured.get(name, 'an unknown one')}"
            )
    for where, real in measured["cases"].items():
        if where not in guesses or "error" in real:
            print(f"{'':>7} {where}: {real.get('error', 'not predicted')[:120]}")
            continue
        guess, peak = guesses[where], real["peak_bytes"]
        error = guess["peak_bytes"] / peak - 1
        saved = real["after_forward_bytes"] - real["start_bytes"]
        rows[where] = {
            "predicted_bytes": guess["peak_bytes"],
            "measured_bytes": peak,
            "error": error,
            "saved_error": guess["saved_bytes"] / saved - 1,
        }
        print(f"{100 * error:+6.2f} % {where}: {peak / 2**20:.1f} MiB, saved {100 * rows[where]['saved_error']:+.2f} %")
    errors = [abs(row["error"]) for row in rows.values()]
    mean, worst = sum(errors) / len(errors), max(errors)
    models = len({where.split(" ")[0] for where in rows})
    print(f"{len(rows)} steps of {models} models: mean error {100 * mean:.2f} %, worst {100 * worst:.2f} %")
    used = {"predicted_with": {n: predicted[n] for n in ("torch", "transformers")}, "device": measured["device"]}
    used["measured_with"] = {n: measured.get(n) for n in ("torch", "transformers")}
    return used | {"models": models, "mean_error": mean, "worst_error": worst, "rows": rows}


def write(path: str, found: dict[str, Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", metavar="FILE", help="write predictions here")
    parser.add_argument("--measure", metavar="FILE", help="measure on this machine's GPU and write here")
    parser.add_argument("--compare", nargs=2, metavar=("PREDICTED", "MEASURED"))
    parser.add_argument("--only", help="models whose reference contains this")
    parser.add_argument("--json", default="out/memory_accuracy.json", help="where --compare writes")
    args = parser.parse_args()
    models = {name: sizes for name, sizes in MODELS.items() if not args.only or args.only in name}
    if args.predict:
        write(args.predict, predict(models))
    if args.measure:
        write(args.measure, measure(models))
    if not args.compare:
        return 0
    found = compare(*(json.loads(Path(path).read_text(encoding="utf-8")) for path in args.compare))
    write(args.json, found)
    return int(found["mean_error"] > MEAN_LIMIT or found["worst_error"] > WORST_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
