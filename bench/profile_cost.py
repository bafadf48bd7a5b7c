"""What profiling costs, against running the model, and how it grows with depth.

    python bench/profile_cost.py [--model gpt2-xl] [--seq 256] [--json out/profile_cost.json]

- CPU seconds to profile (capture excluded) against one real forward and backward on CPU; limit: 50 times cheaper;
- bytes that capture and profile allocate against the model's own memory (parameters and gradients); limit 1 %;
- CPU seconds to profile 126 layers of a llama against 8; limit 1.3 times.

Each part has a process of its own, so that memory is its own. CPU seconds are those of one thread.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import json
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

CHEAPER_LIMIT, ALLOCATED_LIMIT, DEPTH_LIMIT = 50.0, 0.01, 1.3
DEEP, SHALLOW = 126, 8
REPEATS = 9


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def best_profile_s(program: Any) -> float:
    """The least of several: a busy machine only adds."""
    from meshwright.profile import profile_step

    return min(profile_step(program).profile_seconds for _ in range(REPEATS))


def profiled(model: str) -> dict[str, float]:
    """Seconds of capture and profile, and what they allocate beyond what importing takes."""
    import torch

    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference
    from meshwright.profile import profile_step

    torch.set_num_threads(1)
    small = parse_reference("gpt?layers=2&hidden=24&heads=4&ffn=48&vocab=32&seq=12").meta(1)
    profile_step(capture(*small))  # what export imports when first called is nobody's model
    before, start = peak_rss_bytes(), time.process_time()
    program = capture(*parse_reference(model).meta(1))
    capture_s = time.process_time() - start
    found = profile_step(program)
    allocated = peak_rss_bytes() - before
    held = found.params * 4 * 2
    return {"capture_s": capture_s, "profile_s": best_profile_s(program), "allocated_bytes": allocated} | {
        "model_bytes": held,
        "first_profile_s": found.profile_seconds,
    }


def executed(model: str) -> dict[str, float]:
    """CPU seconds of one real forward and backward, the second of two."""
    import torch

    from meshwright.models.reference import parse_reference

    torch.set_num_threads(1)
    reference = parse_reference(model)
    real = reference.build()
    batch = {n: torch.randint(0, 2, shape) for n, (shape, _) in reference.shapes(1).items()}
    seconds = []
    for _ in range(2):
        real.zero_grad(set_to_none=True)
        start = time.process_time()
        real(**batch).backward()
        seconds.append(time.process_time() - start)
    return {"step_s": seconds[-1], "resident_bytes": peak_rss_bytes()}


def deep(layers: str) -> dict[str, float]:
    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference

    program = capture(*parse_reference(f"llama3-405b?layers={layers}").meta(1))
    return {"profile_s": best_profile_s(program), "segments": len(program.segments)}


PARTS = {"profiled": profiled, "executed": executed, "deep": deep}


def part(name: str, argument: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--part", name, argument], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-xl")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--json", default="out/profile_cost.json")
    parser.add_argument("--part", nargs=2, metavar=("NAME", "ARGUMENT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part[0]](args.part[1])))
        return 0
    model = f"{args.model}?seq={args.seq}"
    cheap, real = part("profiled", model), part("executed", model)
    shallow, many = part("deep", str(SHALLOW)), part("deep", str(DEEP))
    found = {
        "times_cheaper": real["step_s"] / cheap["profile_s"],
        "allocated_share": cheap["allocated_bytes"] / cheap["model_bytes"],
        "depth_ratio": many["profile_s"] / shallow["profile_s"],
        "profiled": cheap,
        "executed": real,
        "shallow": shallow,
        "deep": many,
    }
    print(
        f"{model}: profile {cheap['profile_s']:.3f} CPU s, forward and backward {real['step_s']:.1f} CPU s: "
        f"{found['times_cheaper']:.0f} times cheaper (limit {CHEAPER_LIMIT:.0f})"
    )
    print(
        f"allocated {cheap['allocated_bytes'] / 2**20:.1f} MiB of {cheap['model_bytes'] / 2**20:.0f} MiB: "
        f"{100 * found['allocated_share']:.2f} % (limit {100 * ALLOCATED_LIMIT:.0f} %)"
    )
    print(
        f"llama3-405b: {SHALLOW} layers {shallow['profile_s']:.4f} CPU s, {DEEP} layers {many['profile_s']:.4f} CPU s: "
        f"{found['depth_ratio']:.2f} times (limit {DEPTH_LIMIT})"
    )
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(
        found["times_cheaper"] < CHEAPER_LIMIT
        or found["allocated_share"] > ALLOCATED_LIMIT
        or found["depth_ratio"] > DEPTH_LIMIT
    )


if __name__ == "__main__":
    sys.exit(main())
