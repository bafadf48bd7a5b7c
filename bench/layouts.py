"""Speed and quality of conversion pricing.

    python bench/layouts.py [--json out.json]

- all ordered pairs of layouts of a 4-d tensor on a 3-axis mesh, in CPU seconds (limit 5);
- one cached price, in CPU microseconds (limit 5), and one of a shape never seen;
- how often, and by how much, the shortest path beats a greedy converter on a 3-d tensor and a 2-d mesh. The greedy
  rival takes, step by step, the cheapest step that brings the most axes to their target.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path

from meshwright.cluster import Mesh, load_cluster
from meshwright.layout import Layout, all_layouts, conversion
from meshwright.layout.moves import moves
from meshwright.layout.stepprice import price_step

_SHAPE_4D = (32, 2048, 64, 128)
_SHAPE_3D = (32, 2048, 4096)


def all_pairs_s() -> tuple[float, int]:
    mesh = load_cluster("dgx-h100:4").mesh((2, 4, 4), ("pp", "dp", "tp"))
    layouts = all_layouts(4, 3)
    start = time.process_time()
    for source, target in product(layouts, repeat=2):
        conversion(source, target, _SHAPE_4D, 2, mesh)
    return time.process_time() - start, len(layouts) ** 2


def cached_us() -> float:
    mesh = load_cluster("dgx-h100:4").mesh((2, 4, 4), ("pp", "dp", "tp"))
    source, target = Layout.parse("[S(0), S(1), R]"), Layout.parse("[R, S(2), P]")
    conversion(source, target, _SHAPE_4D, 2, mesh)
    n, best = 20000, float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(n):
            conversion(source, target, _SHAPE_4D, 2, mesh)
        best = min(best, (time.process_time() - start) / n)
    return best * 1e6


def cold_us() -> float:
    """One pair of a tensor whose shape was never seen: what a planner pays for each distinct value."""
    mesh, layouts = load_cluster("dgx-h100:4").mesh((4, 8), ("dp", "tp")), all_layouts(3, 2)
    conversion(layouts[0], layouts[5], _SHAPE_3D, 2, mesh)
    start, n = time.process_time(), 300
    for i in range(n):
        conversion(layouts[i % 36], layouts[(7 * i + 3) % 36], (64 * (i + 1), 512, 512), 2, mesh)
    return (time.process_time() - start) / n * 1e6


def greedy_s(source: Layout, target: Layout, mesh: Mesh, grad: bool) -> float:
    total, layout = 0.0, source
    while layout != target:
        wrong = sum(a != b for a, b in zip(layout, target, strict=True))
        options = [
            (sum(a != b for a, b in zip(step.target, target, strict=True)), price.total_s, str(step.target), step)
            for step in moves(layout, len(_SHAPE_3D))
            for price in [price_step(step, _SHAPE_3D, 2, mesh, grad)]
        ]
        left, step_s, _, step = min(options, key=lambda option: option[:3])
        if left >= wrong:
            return float("inf")
        total, layout = total + step_s, step.target
    return total


def against_greedy(grad: bool) -> dict[str, float]:
    mesh = load_cluster("dgx-h100:2").mesh((2, 8), ("dp", "tp"))
    ratios, stuck = [], 0
    for source, target in product(all_layouts(3, 2), repeat=2):
        exact = conversion(source, target, _SHAPE_3D, 2, mesh, grad).total_s
        greedy = greedy_s(source, target, mesh, grad)
        stuck += greedy == float("inf")
        if source != target and exact > 0 and greedy < float("inf"):
            ratios.append(greedy / exact)
    better = [ratio for ratio in ratios if ratio > 1 + 1e-9]
    assert min(ratios) >= 1 - 1e-12, "greedy beat the shortest path"
    return {
        "pairs": len(ratios),
        "strictly_better": len(better),
        "greedy_finds_no_way": stuck,
        "largest_ratio": max(ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    seconds, pairs = all_pairs_s()
    cached, cold = cached_us(), cold_us()
    print(f"{pairs} ordered pairs, 4-d tensor, 3 axes: {seconds:.2f} CPU s (limit 5)")
    print(f"a cached price: {cached:.2f} CPU us (limit 5); one pair of a new shape, 3-d, 2 axes: {cold:.0f} CPU us")
    result: dict[str, object] = {"all_pairs_s": seconds, "pairs": pairs, "cached_us": cached, "cold_us": cold}
    for grad in (True, False):
        found = against_greedy(grad)
        name = "forward and backward" if grad else "forward alone"
        print(
            f"{name}: greedy is slower on {found['strictly_better']} of {found['pairs']} pairs, "
            f"up to {found['largest_ratio']:.1f}x, and finds no way on {found['greedy_finds_no_way']}"
        )
        result[name] = found
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0 if seconds < 5 and cached < 5 else 1


if __name__ == "__main__":
    sys.exit(main())
