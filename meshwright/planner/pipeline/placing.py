"""Runs of the stage programme on the devices that they would get: what their messages take there, slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.cluster import Cluster, Mesh
from meshwright.errors import MeshwrightError
from meshwright.layout import Layout
from meshwright.planner.pipeline.meshes import StageMesh, SubmeshLinks
from meshwright.planner.pipeline.realize import Part, placed_meshes
from meshwright.planner.pipeline.table import Range, Table
from meshwright.planner.stages.problem import Crossing, PlacedRun
from meshwright.price.handover import hand_over_s, keeps_sent
from meshwright.price.parameter import local_bytes
from meshwright.simulate import Transfer

End = tuple[Mesh, Layout]
"""Where a message begins or ends, and how its value lies there."""


def parts_of(runs: Sequence[PlacedRun], meshes: Sequence[StageMesh]) -> list[Part]:
    found = []
    for run in runs:
        chosen = run.point.choice
        assert isinstance(chosen, Range)
        found.append(Part(run.first, run.end, run.stage, meshes[run.mesh], chosen.sharded))
    return found


def crossings(
    cluster: Cluster, submesh_links: SubmeshLinks, table: Table, parts: Sequence[Part]
) -> list[Crossing | None]:
    """Between every part and the next; None for all where the devices cannot be given out so."""
    try:
        meshes = placed_meshes(cluster, parts)
    except MeshwrightError:
        return [None] * len(parts)
    found: list[Crossing | None] = []
    for one, other in pairwise(parts):
        here = table.boundaries[one.end]
        ends: list[list[End]] = []
        for part in (one, other):
            mesh = meshes[part.stage]
            ends.append([(mesh, Layout.parse(part.sharded.layouts[name])) for name in here.names])
        found.append(_crossing(submesh_links, here.shapes, here.itemsizes, here.grads, *ends))
    return found


def _crossing(
    submesh_links: SubmeshLinks,
    shapes: Sequence[tuple[int, ...]],
    itemsizes: Sequence[int],
    grads: Sequence[bool],
    sources: Sequence[End],
    targets: Sequence[End],
) -> Crossing:
    there_s = back_s = 0.0
    sent = received = 0
    for shape, size, grad, source, target in zip(shapes, itemsizes, grads, sources, targets, strict=True):
        rate = submesh_links.between(source[0].ranks, target[0].ranks)
        there_s += hand_over_s(shape, size, source, target, rate)
        back_s += hand_over_s(shape, size, target, source, rate) if grad else 0.0
        sent += local_bytes(shape, size, source[1], source[0])
        received += local_bytes(shape, size, target[1], target[0])
    keeps = [any(keeps_sent(mesh) for mesh, _ in ends) for ends in (sources, targets)]
    return Crossing(
        Transfer(there_s, 0.0, sent, received, kept=keeps[0]), Transfer(back_s, 0.0, received, sent, kept=keeps[1])
    )
