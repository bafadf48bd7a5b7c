"""What can be said of pins without a model: refused before it is captured, most of it before torch is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshwright.errors import PlanError
from meshwright.pins.methods import IN_STAGES, no_stages, pinned_method
from meshwright.pins.offload import pinned_offload
from meshwright.pins.spelling import check_spelling
from meshwright.pins.stages import check_stages, pipeline_pins

if TYPE_CHECKING:
    from meshwright.cluster import Cluster

MOST_AXES = 3
"""Of a mesh, unless a pin gives it more."""


def check_pins(texts: Iterable[str], cluster: Cluster | None = None, batch: int | None = None) -> None:
    """Refuses what no model could have: misspelt pins, two that contradict each other, sizes that the cluster does not
    have, micro-batches without samples. cluster, batch: where they are known."""
    texts = tuple(dict.fromkeys(texts))
    check_spelling(texts, cluster)
    method, rest = pinned_method(texts)
    _, rest = pinned_offload(rest)
    asked = pipeline_pins(rest)
    if asked.pipeline and method not in IN_STAGES:
        raise no_stages(method)
    if batch is not None and rest:
        from meshwright.pins.meshes import check_microbatches

        check_microbatches(rest, batch)
    if cluster is None:
        return
    if asked.pipeline:
        check_stages(asked, cluster.device_count)
    elif asked.one_stage and asked.rest:
        _check_meshes(asked.rest, cluster, batch)


def _check_meshes(pins: tuple[str, ...], cluster: Cluster, batch: int | None) -> None:
    """Raises the first refusal where no mesh of the cluster can have the pins."""
    from meshwright.pins.meshes import allowed_meshes, readings_on
    from meshwright.pins.pins import pin_readings

    refused: list[PlanError] = []
    for mesh in allowed_meshes(cluster, pins, MOST_AXES):
        try:
            pin_readings(pins, mesh) if batch is None else readings_on(mesh, pins, batch)
        except PlanError as error:
            refused.append(error)
        else:
            return
    raise refused[0]
