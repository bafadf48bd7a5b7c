"""The public entry to planning: a model, a batch, a cluster and a memory limit in; a Plan out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from meshwright.capture import Batch, capture
from meshwright.capture.precision import Precision
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError
from meshwright.models.joined import joined, joined_batch
from meshwright.plan.plan import Plan
from meshwright.plan.units import parse_bytes
from meshwright.profile import profile_step as profile
from meshwright.solve.pin_words import check_words
from meshwright.solve.plan import make_plan


def plan(
    model: nn.Module,
    batch: Batch,
    cluster: str | Cluster = "local:1",
    *,
    memory: str | int | None = None,
    global_batch: int | None = None,
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    compile: bool = False,
    pins: str | Iterable[str] = (),
    loss: Callable[..., Tensor] | None = None,
    allow: str | Iterable[str] = (),
) -> Plan:
    """The fastest plan that fits. `memory`: bytes per device (`"20GiB"`); `batch` may be on the meta device. `compile`:
    segments run compiled by inductor; they are priced as eager so far. `allow`: answers to lines of the model that ask
    for a tensor's value, `"file.py:12=False"`, which are refused otherwise; the plan holds them as `answers`."""
    if global_batch is not None and (type(global_batch) is not int or global_batch < 1):
        raise PlanError(
            f"global_batch {global_batch!r}", "a whole number of samples, at least 1", "give a larger batch"
        )
    found = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    check_words(pins := _texts(pins), found)
    batch = joined_batch(model, batch, loss)
    model, loss = joined(model, loss)
    program = capture(model, batch, loss, precision=precision, allow=allow)
    if global_batch is not None:
        program = program.at_batch(global_batch)
    return make_plan(
        program,
        found,
        memory_bytes=parse_bytes(memory),
        optimizer=optimizer,
        precision=precision,
        compile=compile,
        pins=pins,
    )


def _texts(pins: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(pins, str):
        return (pins,)
    if not isinstance(pins, Iterable):
        raise PlanError(f"pins={pins!r}", 'text such as "tp=2", or a list of such', "correct it, or give no pins")
    return tuple(pins)


__all__ = ["plan", "profile"]
