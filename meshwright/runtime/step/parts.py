"""What a rank needs to run its stages: pairs, parameters, and the process groups of each stage's mesh."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.generate.program import Generated, generate
from meshwright.plan import Instruction, Plan, Stage
from meshwright.runtime.step.batches import own_coordinates, own_stages
from meshwright.runtime.step.units import units
from meshwright.runtime.watch import Watch, WatchedTransport
from meshwright.runtime.weights.adoption import Cut
from meshwright.runtime.weights.sources import Weights
from meshwright.runtime.weights.store import Loading, Store


@dataclass(frozen=True, slots=True)
class Part:
    """One of the stages that this rank runs: all its segments, in chain order. at: this rank's coordinates in the
    stage's mesh. last: of a smaller last micro-batch."""

    stage: Stage
    generated: Generated
    store: Store
    transport: WatchedTransport
    at: tuple[int, ...]
    compiled: bool = False
    last: Generated | None = None

    @property
    def cuts(self) -> dict[str, Cut]:
        """Which piece of each parameter that lives here is this rank's."""
        store, sizes = self.store, self.stage.mesh.sizes
        return {name: Cut(store.layouts[name][0], sizes, self.at, like) for name, like in store.like.items()}

    @property
    def every(self) -> list[Generated]:
        return [self.generated] if self.last is None else [self.generated, self.last]


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how parts run: the device, who is told what goes on, which list they play, what is compiled as one (one
    of `units.UNITS`, or nothing)."""

    device: torch.device
    watch: Watch
    instructions: tuple[Instruction, ...]
    unit: str

    @property
    def compiled(self) -> bool:
        return bool(self.unit)


def make_parts(weights: Weights, plan: Plan, program: Program, place: Place) -> tuple[Part, ...]:
    """This rank's. Every rank calls this, with the same plan: it makes process groups."""
    rank = dist.get_rank()
    numbers = sorted({number for stage in plan.stages for number in stage.mesh.ranks})
    if len(plan.stages) > 1 and numbers != list(range(plan.world_size)):
        given = f"stages on ranks {[stage.mesh.ranks for stage in plan.stages]}"
        raise RunError(given, f"each of the ranks 0 to {plan.world_size - 1}", "plan for as many devices as there are")
    groups = [_groups(plan, stage, place) for stage in plan.stages]
    found = []
    own, thread = own_stages(plan, rank), ThreadPoolExecutor(1, "reductions")
    for stage, made in zip(plan.stages, groups, strict=True):
        if stage not in own or made is None:
            continue
        mesh, transport, lane = made
        at = own_coordinates(plan, stage, rank)
        first, smaller = _generated(plan, program, stage, place, at)
        # Last: the model's own weights are let go as they are taken.
        source = weights.source(stage.mesh.sizes, at)
        store = Store(program, plan, Loading(source, mesh, lane, thread, place.device), stage=stage)
        found.append(Part(stage, first, store, transport, at, place.compiled, smaller))
    return tuple(found)


def shared_parts(shared: tuple[Part, ...], plan: Plan, program: Program, place: Place) -> tuple[Part, ...]:
    """Parts of another plan on what the parts of a first one store and communicate with."""
    found = []
    for part in shared:
        stage = next(one for one in plan.stages if one.first == part.stage.first)
        first, smaller = _generated(plan, program, stage, place, part.at)
        store = Store(program, plan, part.store, stage=stage)
        found.append(Part(stage, first, store, part.transport, part.at, place.compiled, smaller))
    return tuple(found)


def _generated(
    plan: Plan, program: Program, stage: Stage, place: Place, at: tuple[int, ...]
) -> tuple[Generated, Generated | None]:
    """A stage's pairs, and those of a smaller last micro-batch."""
    joined = _joined(plan, program, stage, place)
    made = [generate(program, one, place.device.type, place.compiled, stage, joined, at) for one, _ in plan.cut]
    return made[0], made[1] if len(made) > 1 else None


def _joined(plan: Plan, program: Program, stage: Stage, place: Place) -> list[tuple[int, int]]:
    if not place.compiled:
        return []
    return units(plan, program, stage, place.instructions, place.device, place.unit)


Made = tuple[DeviceMesh, WatchedTransport, WatchedTransport | None]


def _groups(plan: Plan, stage: Stage, place: Place) -> Made | None:
    """The stage's mesh and transports; None on a rank that has no part in it."""
    mesh, lane = stage.mesh, None
    wanted = mesh.world_size > 1
    if len(plan.stages) == 1:
        made = init_device_mesh(place.device.type, mesh.sizes, mesh_dim_names=mesh.names)
        transport = WatchedTransport.from_mesh(made)
        if wanted:
            lane = WatchedTransport.shared(made.mesh, mesh.names, "lane")
    else:
        ranks = torch.tensor(mesh.ranks).reshape(mesh.sizes)
        found = WatchedTransport.shared(ranks, mesh.names, "stage")
        if wanted:
            lane = WatchedTransport.shared(ranks, mesh.names, "lane")
        if found is None:
            return None
        transport = found
        own = [transport.group(name) for name in mesh.names]
        made = DeviceMesh.from_group(
            own if len(own) > 1 else own[0], place.device.type, ranks, mesh_dim_names=mesh.names
        )
    if lane is not None:
        lane = lane.watched_by(place.watch)
    return made, transport.watched_by(place.watch), lane
