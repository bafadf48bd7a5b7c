"""Runs of the stage programme on the devices that they would get, and the cost of messages between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.cluster import Cluster, Mesh
from meshwright.errors import MeshwrightError
from meshwright.layout import Layout
from meshwright.planner.pipeline.meshes import StageMesh, SubmeshLinks
from meshwright.planner.pipeline.realize import ShardedRun, placed_meshes
from meshwright.planner.pipeline.sharded_chains import ShardedChain
from meshwright.planner.pipeline.table import Table
from meshwright.planner.stages.problem import Crossing, PlacedRun
from meshwright.price.handover import hand_over_s, keeps_sent
from meshwright.price.parameter import local_bytes
from meshwright.simulate import Transfer

Side = tuple[Mesh, Layout]
"""The mesh at one end of a message, and the layout of the value there."""


def sharded_runs(runs: Sequence[PlacedRun], meshes: Sequence[StageMesh]) -> list[ShardedRun]:
    found = []
    for run in runs:
        sharded = run.point.choice
        assert isinstance(sharded, ShardedChain)
        found.append(ShardedRun(run.first, run.end, run.stage, meshes[run.mesh], sharded))
    return found


def crossings(
    cluster: Cluster, submesh_links: SubmeshLinks, table: Table, runs: Sequence[ShardedRun]
) -> list[Crossing | None]:
    """The cost of handing over between every run and the next; None for all where the devices cannot be placed so."""
    try:
        meshes = placed_meshes(cluster, runs)
    except MeshwrightError:
        return [None] * len(runs)
    found: list[Crossing | None] = []
    for one, other in pairwise(runs):
        here = table.boundaries[one.end]
        ends: list[list[Side]] = []
        for run in (one, other):
            mesh = meshes[run.stage]
            ends.append([(mesh, Layout.parse(run.sharded.layouts[name])) for name in here.names])
        found.append(_crossing(submesh_links, here.shapes, here.itemsizes, here.grads, *ends))
    return found


def _crossing(
    submesh_links: SubmeshLinks,
    shapes: Sequence[tuple[int, ...]],
    itemsizes: Sequence[int],
    grads: Sequence[bool],
    sources: Sequence[Side],
    targets: Sequence[Side],
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
