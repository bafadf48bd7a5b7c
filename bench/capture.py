"""Capture llama3-405b at sequence 8192 on a laptop: CPU seconds, memory, distinct graphs; and how both grow with depth.

    python bench/capture.py [--json results.json]

Each measurement runs in a process of its own. Targets: 25 CPU seconds and 2 GiB for capture and profile together, at
most 8 distinct graphs. The rival, measured in the same run, is plain `torch.export` of the same model at an eighth
of its depth: layers that are alike are traced once here, and one by one there.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

LAYERS = (8, 126)
LIMIT_S, LIMIT_BYTES, LIMIT_GRAPHS = 25.0, 2 << 30, 8


def measure(layers: int, plain: bool) -> dict[str, Any]:
    """In a fresh process: build on meta, capture (or only export), and say what it took."""
    start_s = time.process_time()
    from meshwright.capture import capture
    from meshwright.capture.export import export
    from meshwright.models.reference import parse_reference

    import_s = time.process_time() - start_s
    model, batch, _ = parse_reference("llama3-405b", [f"layers={layers}"]).meta(1)
    built_s = time.process_time() - start_s
    found: dict[str, Any] = {"layers": layers, "import_s": import_s, "build_s": built_s - import_s}
    if plain:
        export(model, batch, once=False)
    else:
        program = capture(model, batch)
        other_s = time.process_time()
        program.at_batch(7).verify()
        found |= {"at_batch_s": time.process_time() - other_s}
        found |= {"segments": len(program.segments), "distinct_segments": len(program.graphs)}
    found["total_s"] = time.process_time() - start_s
    found["capture_s"] = found["total_s"] - built_s
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def child(layers: int, plain: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--layers", str(layers), *(["--plain"] if plain else [])]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.layers:
        print(json.dumps(measure(args.layers, args.plain)))
        return 0
    rows = [child(layers, False) for layers in LAYERS]
    rival = child(16, True)
    deep = rows[-1]
    for row in rows:
        print(
            f"{row['layers']:4} layers: capture {row['capture_s']:5.1f} CPU s (process {row['total_s']:5.1f} s),"
            f" {row['peak_rss_bytes'] / 2**20:5.0f} MiB,"
            f" {row['segments']} segments, {row['distinct_segments']} distinct"
        )
    print(f"  16 layers: torch.export alone {rival['capture_s']:5.1f} CPU s")
    per_layer = rival["capture_s"] / 16 / (deep["capture_s"] / 126)
    print(f"per layer {per_layer:.1f}x cheaper than torch.export; at_batch(7) {deep['at_batch_s'] * 1e3:.1f} ms")
    ok = deep["total_s"] <= LIMIT_S and deep["peak_rss_bytes"] <= LIMIT_BYTES
    ok = ok and deep["distinct_segments"] <= LIMIT_GRAPHS
    print("within the limits" if ok else "over a limit")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "torch_export_16_layers": rival, "within_limits": ok}, file, indent=1)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
