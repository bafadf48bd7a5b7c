"""A plan in words: what the mesh does, where parameters live, what a step costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from meshwright.layout import Collective
from meshwright.plan.plan import Plan

ROLES = {"dp": "data parallel: samples are split", "tp": "tensor parallel: weights are split"}
ROLES |= {"rep": "every device does the same: splitting would cost more than it saves"}


def describe(plan: Plan) -> str:
    lines = [f"plan for {plan.model or 'a model'}, global batch {plan.batch}, on {plan.cluster}"]
    lines += [f"  axis {axis.name} of {axis.size}: {ROLES[axis.name]}" for axis in plan.mesh.axes]
    lines += _parameters(plan)
    found = plan.predicted
    lines.append(
        f"  predicted step {seconds(found.step_s)}: forward {seconds(found.forward_s)}, "
        f"backward {seconds(found.backward_s)}, optimizer {seconds(found.optimizer_s)}; "
        f"of it communication {seconds(found.communication_s)}; gap {found.gap:.2%}"
    )
    lines.append(
        f"  predicted peak {size(found.peak_bytes)} per device: parameters, gradients and optimizer "
        f"{size(found.static_bytes)}, activations {size(found.resident_bytes)}, working {size(found.transient_bytes)}"
    )
    lines += [f"  {line}" for line in collectives_table(found.collectives)]
    return "\n".join(lines)


def _parameters(plan: Plan) -> list[str]:
    counts = Counter((entry.storage, entry.compute, entry.regather) for entry in plan.parameters.values())
    return [
        f"  {count} parameters stored {storage}, used {compute}{', gathered for each use' if again else ''}"
        for (storage, compute, again), count in counts.most_common()
    ]


def collectives_table(collectives: Iterable[Collective]) -> list[str]:
    """One line per kind and axis: how many, and how many bytes in all."""
    counts: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    for item in collectives:
        counts[item.kind, item.axis] += 1
        moved[item.kind, item.axis] += item.bytes
    return [f"{n} x {kind} over {axis}, {size(moved[kind, axis])}" for (kind, axis), n in sorted(counts.items())]


def seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.2g} s"


def size(value: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value} B"
