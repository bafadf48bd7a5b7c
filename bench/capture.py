"""Capture and profile llama3-405b at sequence 8192 on a laptop: CPU seconds, memory, graphs, growth with depth.

    python bench/capture.py [--json out/capture.json]

Each measurement has a process of its own. Limits: 25 CPU seconds and 2 GiB for a whole process that captures and
profiles, at most 8 distinct graphs, and profiling (the least of several) of 126 layers at most 1.3 times that of 8.
The rival, measured in the same run, is plain `torch.export` of the same model at an eighth of its depth: layers that
are alike are traced once here, and one by one there.
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

SHALLOW, DEEP, RIVAL = 8, 126, 16
REPEATS = 9
LIMIT_S, LIMIT_BYTES, LIMIT_GRAPHS, LIMIT_DEPTH = 25.0, 2 << 30, 8, 1.3


def measure(layers: int, plain: bool) -> dict[str, Any]:
    """In a fresh process: build on meta, capture and profile (or only export), and say what it took."""
    start_s = time.process_time()
    from meshwright.capture import capture
    from meshwright.capture.tracing.export import export
    from meshwright.models.reference import parse_reference
    from meshwright.profile import profile_step

    import_s = time.process_time() - start_s
    model, batch, _ = parse_reference("llama3-405b", [f"layers={layers}", "seq=8192"]).meta(1)
    built_s = time.process_time() - start_s
    found: dict[str, Any] = {"layers": layers, "import_s": import_s, "build_s": built_s - import_s}
    if plain:
        export(model, batch, once=False)
        return found | {"capture_s": time.process_time() - start_s - built_s}
    program = capture(model, batch)
    found["capture_s"] = time.process_time() - start_s - built_s
    found["first_profile_s"] = profile_step(program).profile_seconds
    found["total_s"] = time.process_time() - start_s
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["profile_s"] = min(profile_step(program).profile_seconds for _ in range(REPEATS))
    other_s = time.process_time()
    program.at_batch(7).verify()
    found["at_batch_s"] = time.process_time() - other_s
    return found | {"segments": len(program.segments), "distinct_segments": len(program.graphs)}


def child(layers: int, plain: bool = False) -> dict[str, Any]:
    command = [sys.executable, __file__, "--layers", str(layers), *(["--plain"] if plain else [])]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", default="out/capture.json")
    args = parser.parse_args()
    if args.layers:
        print(json.dumps(measure(args.layers, args.plain)))
        return 0
    shallow, deep, rival = child(SHALLOW), child(DEEP), child(RIVAL, plain=True)
    for row in (shallow, deep):
        print(
            f"{row['layers']:4} layers: capture {row['capture_s']:5.1f} CPU s, profile {row['profile_s'] * 1e3:6.2f} ms"
            f" (first {row['first_profile_s'] * 1e3:.0f} ms), process {row['total_s']:5.1f} s,"
            f" {row['peak_rss_bytes'] >> 20} MiB, {row['segments']} segments, {row['distinct_segments']} distinct"
        )
    print(f"{RIVAL:4} layers: torch.export alone {rival['capture_s']:5.1f} CPU s")
    per_layer = rival["capture_s"] / RIVAL / (deep["capture_s"] / DEEP)
    depth = deep["profile_s"] / shallow["profile_s"]
    print(f"per layer {per_layer:.1f}x cheaper than torch.export; at_batch(7) {deep['at_batch_s'] * 1e3:.1f} ms")
    print(f"profiling {DEEP} layers costs {depth:.2f} times that of {SHALLOW} (limit {LIMIT_DEPTH})")
    ok = deep["total_s"] <= LIMIT_S and deep["peak_rss_bytes"] <= LIMIT_BYTES
    ok = ok and deep["distinct_segments"] <= LIMIT_GRAPHS and depth <= LIMIT_DEPTH
    print("within the limits" if ok else "over a limit")
    found = {"rows": [shallow, deep], "torch_export": rival, "depth_ratio": depth, "within_limits": ok}
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
