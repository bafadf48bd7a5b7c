"""Models and ops whose time is predicted."""

from __future__ import annotations

import random
import sys
from math import prod
from typing import Any

SEEN = {
    "mlp?layers=7&hidden=896&inputs=1152": (20, 5120),
    "gpt?layers=4&hidden=448&heads=7&ffn=1792&vocab=10000&seq=224": (2, 28),
    "gpt2?layers=7&seq=384": (2, 9),
    "llama?layers=3&hidden=1408&heads=11&kv_heads=11&ffn=3840&vocab=28000&seq=704": (1, 5),
    "bert?layers=6&seq=448": (2, 14),
    "t5?layers=5&hidden=576&heads=9&ffn=2304&seq=256": (2, 12),
    "vit?layers=9": (4, 36),
    "resnet50?image=208": (6, 48),
    "wide-resnet?image=144": (5, 36),
    "unet?width=112&image=56": (3, 18),
    "amoebanet?layers=3&width=112": (6, 40),
    "moe?layers=3&hidden=896&heads=14&kv_heads=7&ffn=1792&vocab=14000&seq=448": (2, 8),
}
HELD_OUT = {
    "mlp?layers=4&hidden=1024&inputs=1408": (38, 8192),
    "gpt?layers=4&hidden=512&heads=8&ffn=2048&vocab=13000&seq=160": (4, 36),
    "gpt2?layers=5&seq=896": (1, 4),
    "llama?layers=4&hidden=512&heads=4&kv_heads=2&ffn=1024&vocab=32000&seq=832": (1, 5),
    "bert?layers=9&seq=512": (4, 17),
    "t5?layers=4&hidden=512&heads=8&ffn=2048&seq=256": (2, 13),
    "vit?layers=10": (4, 45),
    "resnet50?image=160": (8, 59),
    "wide-resnet?image=128": (6, 45),
    "unet?width=96&image=96": (3, 21),
    "amoebanet?layers=3&width=128": (7, 38),
    "moe?layers=5&hidden=512&heads=8&kv_heads=4&ffn=1024&vocab=14000&seq=256": (1, 12),
}
"""Models and sizes at which nothing was looked at while the prices were made, drawn at random; SEEN: those of the check
before."""

PRECISIONS = ("fp32", "bf16")
OPS_PER_KIND = 16


def models(which: str) -> dict[str, tuple[int, ...]]:
    return {"seen": SEEN, "held-out": HELD_OUT}[which]


def collect(which: str) -> dict[str, Any]:
    """Programs at both precisions and, per kind and precision, ops at the sizes that the models have them."""
    import torch

    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference

    programs: dict[str, Any] = {}
    for name, batches in models(which).items():
        for precision in PRECISIONS:
            model, batch, loss = parse_reference(name).meta(batches[0])
            if precision == "bf16":
                model = model.to(torch.bfloat16)
                batch = {n: t.to(torch.bfloat16) if t.is_floating_point() else t for n, t in batch.items()}
            programs[f"{name} {precision}"] = capture(model, batch, loss)
            print(f"captured {name} {precision}", file=sys.stderr)
    return {"programs": programs, "ops": _choose_ops(programs, which)}


def _choose_ops(programs: dict[str, Any], which: str) -> list[dict[str, Any]]:
    from meshwright.profile import op_kind

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, program in programs.items():
        reference, precision = name.rsplit(" ", 1)
        for size in models(which)[reference]:
            for graph in program.graphs:
                fixed = graph.at(size)
                values = fixed.values()
                for op in fixed.ops:
                    operands = [values[n] for n in op.operands()]
                    kind = op_kind(op)
                    heavy = sum(prod(v.type.sizes) for v in (*operands, *op.results)) > 1 << 16
                    if kind == "view" or not heavy or not any(v.type.is_float for v in op.results):
                        continue
                    key = f"{op.target} {[str(v.type) for v in operands]} {[str(v.type) for v in op.results]}"
                    case = {"kind": kind, "precision": precision, "op": op, "operands": operands}
                    found.setdefault((f"{kind} {precision}", key), case)
    rng, chosen = random.Random(0), []
    for group in sorted({group for group, _ in found}):
        targets: dict[str, list[dict[str, Any]]] = {}
        for (where, _), case in found.items():
            if where == group:
                targets.setdefault(case["op"].target, []).append(case)
        each = OPS_PER_KIND if len(targets) < 4 else 3
        for here in targets.values():
            chosen += rng.sample(here, min(each, len(here)))
    return chosen
