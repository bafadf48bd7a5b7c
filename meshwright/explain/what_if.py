"""`Plan` with other pins: the best plan that they allow, to compare with the one at hand."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError
from meshwright.pins.parts import split_pin
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.planner.search_log import Progress


def what_if(
    plan: Plan,
    program: Program,
    pins: Iterable[str],
    cluster: str | Cluster | None = None,
    on_incumbent: Progress | None = None,
    on_node: Progress | None = None,
) -> Plan:
    """The best plan under the plan's own pins with these changed or added, all else as it was given.

    pins: `name=value` sets a pin, `name=` drops it.
    cluster: where it is not the plan's, or is a file.
    on_incumbent, on_node: as of `make_plan`.
    """
    found = load_cluster(cluster or plan.cluster) if not isinstance(cluster, Cluster) else cluster
    return make_plan(
        program,
        found,
        model=plan.model,
        memory_bytes=plan.memory_bytes,
        headroom=plan.headroom if plan.memory_bytes is None else None,
        optimizer=plan.optimizer,
        precision=plan.precision,
        compile=plan.compile,
        pins=changed_pins(plan.pins, pins),
        on_incumbent=on_incumbent,
        on_node=on_node,
    )


def changed_pins(given: Iterable[str], pins: Iterable[str]) -> tuple[str, ...]:
    """Pins by name: a later one replaces an earlier one, and one without a value removes it."""
    found = {split_pin(text)[0]: text for text in given}
    for text in pins:
        key, value = split_pin(text)
        if "=" not in text or not key:
            raise PlanError(f"pin {text!r}", "`name=value`, or `name=` to drop it", "correct it")
        if not value and key not in found:
            own = (
                f"one of the plan's own: {', '.join(found.values())}" if found else "a pin of the plan, which has none"
            )
            raise PlanError(f"pin {text!r} drops a pin that there is not", own, "correct it, or leave it out")
        found.pop(key, None)
        if value:
            found[key] = text
    return tuple(found.values())
