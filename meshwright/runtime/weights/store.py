"""Stored parameters: DTensors in the plan's storage layout and dtype, gradients in the same; compute copies too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.capture.program import Parameter, Program
from meshwright.layout import Layout
from meshwright.layout.convert import convert_gradient, convert_value
from meshwright.layout.transport import Transport
from meshwright.plan import Plan, Stage
from meshwright.price.buckets import Bucket, Transfers, gathered, is_home, legs_of, moves, reduced, replica_sums
from meshwright.runtime.weights.buckets import Scratch, Shape, gather, reduce
from meshwright.runtime.weights.homes import Home, Homes
from meshwright.runtime.weights.hosted import HostMemory
from meshwright.runtime.weights.overlap import Begun, Overlap
from meshwright.runtime.weights.packing import has_holes, packed, part_of
from meshwright.runtime.weights.replica_sums import ReplicaSums
from meshwright.torch_compat import dtensor_like, local_tensor, storage_users

Source = Callable[[Parameter, Layout, torch.dtype], Tensor]
"""This rank's piece of a parameter, in its storage layout and dtype, in memory of its own."""

Copies = dict[str, Tensor]
Reduced = dict[str, Tensor]
"""This rank's piece of each gradient."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Where a store's parameters come from, and on which mesh they lie. lane: what carries gathers and reductions
    while others compute; without it, they are waited for. thread: that of all stages that a rank runs. device: where
    segments compute; that of the parameters unless given."""

    source: Source
    mesh: DeviceMesh
    lane: Transport | None = None
    thread: ThreadPoolExecutor | None = None
    device: torch.device | None = None


class Store:
    """One rank's share of the parameters that live on a stage, and what is gathered from it while a step runs.

    tied_replicas: parameters of other stages that this one reads: copies are put here, gradients fetched.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        origin: Loading | Store,
        stage: Stage | None = None,
    ) -> None:
        """origin: where parameters come from, or the store of another plan that has them already. stage: the only one
        unless given."""
        here = plan.stages[0] if stage is None else stage
        self.plan, self.mesh, self.tied_replicas = plan, here.mesh, here.tied_replicas
        own = {p.name: p for p in program.parameters if plan.home(program, p.name) is here}
        self.shapes = {parameter.name: parameter.type.sizes for parameter in program.parameters}
        self.dtypes = {parameter.name: getattr(torch, parameter.type.dtype) for parameter in program.parameters}
        self.wide = {name: getattr(torch, entry.dtype) for name, entry in plan.parameters.items()}
        self.layouts = {
            name: (Layout.parse(plan.parameters[name].storage), Layout.parse(plan.parameters[name].compute))
            for name in own
        }
        self.legs = {name: legs_of(plan.parameters[name]) for name in own}
        self.copies: Copies = {}
        self.gradients: dict[str, Tensor] = {}
        self.summed: set[str] = set()
        self.gathers = {n: [gathered(plan, program, n, each_use=flag) for flag in (False, True)] for n in here.segments}
        self.reductions = {
            n: [reduced(plan, program, n, scatter=flag) for flag in (False, True)] for n in here.segments
        }
        self.replica_sums = {n: replica_sums(plan, program, n) for n in here.segments}
        self.scattered = ReplicaSums(self.legs, self.shapes, self.mesh)
        self.unbucketed = {
            n: tuple(name for t in self.gathers[n] for name in t.unbucketed if moves(plan, program, name))
            for n in here.segments
        }
        self.on_host = frozenset(name for name in own if plan.parameters[name].on_host)
        self.home = {name for name in own if name not in self.on_host and is_home(plan, program, name)}
        self.segments = {n: program.segments[n].params for n in here.segments}
        self.handed = {n: self._handed(n) for n in here.segments}
        self.regathered = {name for name in own if plan.parameters[name].reshard_after_forward}
        self._shapes: dict[Bucket, Shape] = {}
        if isinstance(origin, Store):
            self._share(origin)
        else:
            self._begin_with(own, origin)
        self._gathering: dict[str, Begun[Copies]] = {}
        self._reducing: list[Begun[Reduced]] = []

    def _begin_with(self, own: Mapping[str, Parameter], origin: Loading) -> None:
        self.stored: dict[str, nn.Parameter] = {}
        self.locals: dict[str, Tensor] = {}
        self.like: dict[str, DTensor] = {}
        self._flats: dict[Bucket, Tensor] = {}
        for name, parameter in own.items():
            self.locals[name] = origin.source(parameter, self.layouts[name][0], self.wide[name])
        first = next((local.device for local in self.locals.values()), torch.device("cpu"))
        self.device = origin.device or first
        self.memory, self._host_homes = HostMemory(self.device), dict[str, tuple[Tensor, int]]()
        self.device_mesh = origin.mesh
        self._load(own, origin.mesh)
        self.homes, self.scratch = Homes(self.stored), Scratch()
        self.overlap = Overlap(origin.lane, self.device, origin.thread, alone=bool(self.on_host))

    def _share(self, other: Store) -> None:
        """Parameters, where their gradients live, and what carries collectives; buckets that lie otherwise are put side
        by side when they are gathered."""
        self.stored, self.locals, self.like, self._flats = other.stored, other.locals, other.like, other._flats
        self.device, self.homes, self.scratch, self.overlap = other.device, other.homes, other.scratch, other.overlap
        self.memory, self._host_homes, self.device_mesh = other.memory, other._host_homes, other.device_mesh

    def _handed(self, segment: int) -> tuple[str, ...] | None:
        """A segment's parameters, where all of its gradients come as they are stored and nothing is to be moved."""
        transfers = self.reductions[segment]
        names = tuple(name for one in transfers for name in one.unbucketed)
        moved = any(one.buckets for one in transfers) or not self.home.issuperset(names)  # to the host, too
        return None if moved or any(self.dtypes[name] != self.wide[name] for name in names) else names

    def _load(self, own: Mapping[str, Parameter], mesh: DeviceMesh) -> None:
        for name in self.on_host:
            self.locals[name] = self.memory.put(self.locals[name])
        self.memory.synchronize()
        for found in self.gathers.values():
            for bucket in (bucket for transfers in found for bucket in transfers.buckets):
                self._lay_side_by_side(bucket)
        self._pack()
        for name, parameter in own.items():
            self.like[name] = as_dtensor(self.locals[name], mesh, self.layouts[name][0], self.shapes[name])
            self.stored[name] = nn.Parameter(self.like[name], requires_grad=parameter.trainable)

    def _lay_side_by_side(self, bucket: Bucket) -> None:
        """Pieces that are gathered together: so nothing is copied first. A tied weight can lie in one bucket only."""
        placed = {name for other in self._flats for name in other.names}
        alike = len({self.wide[name] for name in bucket.names}) == 1
        if alike and placed.isdisjoint(bucket.names):
            flat = torch.cat([self.locals[name].reshape(-1) for name in bucket.names])
            self._place(bucket, self.memory.put(flat) if self.on_host.issuperset(bucket.names) else flat)

    def _place(self, bucket: Bucket, flat: Tensor) -> None:
        """The bucket's parameters are parts of this memory."""
        self._flats[bucket] = flat
        self.locals.update((name, part_of(flat, view)) for name, view in self._local_shape(bucket).views(flat).items())

    def _pack(self) -> None:
        """Gives back the memory that the weights came in, where that has holes."""
        if not has_holes(self.device):
            return
        flat = {name for bucket in self._flats for name in bucket.names}
        here = [bucket for bucket in self._flats if self.on_host.isdisjoint(bucket.names)]
        held: dict[str | Bucket, Tensor] = {bucket: self._flats.pop(bucket) for bucket in here}
        held.update((n, local) for n, local in self.locals.items() if n not in flat and n not in self.on_host)
        order = list(self.locals)
        self.locals = {name: local for name, local in self.locals.items() if name in self.on_host}
        for key, tensor in packed(held, self.device).items():
            if isinstance(key, Bucket):
                self._place(key, tensor)
            else:
                self.locals[key] = tensor
        self.locals = {name: self.locals[name] for name in order}

    def _local_shape(self, bucket: Bucket) -> Shape:
        """Of the bucket's parameters in storage; of an all-reduce, as they compute, which is alike."""
        if bucket not in self._shapes:
            sizes = [self.layouts[name][0].local_shape(self.shapes[name], self.mesh.sizes) for name in bucket.names]
            self._shapes[bucket] = Shape(bucket, tuple(map(tuple, sizes)))
        return self._shapes[bucket]

    def compute(self, name: str) -> Tensor:
        """The parameter in its compute layout and dtype; it has been gathered if storage differs."""
        found = self.copies.get(name)
        return self.locals[name] if found is None else found

    def gather(self, segment: int) -> None:
        """Begin to bring what the segment computes with from storage, where that has it otherwise. Cast first: fewer
        bytes travel."""
        for transfers in self.gathers[segment]:
            for bucket in transfers.buckets:
                if any(name not in self.copies and name not in self._gathering for name in bucket.names):
                    shape, dtype = self._local_shape(bucket), self.dtypes[bucket.names[0]]
                    out = torch.empty(sum(shape.counts) * bucket.size, dtype=dtype, device=self.device)
                    self._begin(bucket.names, partial(self._gathered, shape, out))
        for name in self.unbucketed[segment]:
            if name not in self.copies and name not in self._gathering:
                self._begin((name,), partial(self._converted, name))

    def _begin(self, names: Iterable[str], work: Callable[[], Copies]) -> None:
        begun = self.overlap.start(work)
        self._gathering.update(dict.fromkeys(names, begun))

    def _gathered(self, shape: Shape, out: Tensor) -> Copies:
        flat = self._flats.get(shape.bucket)
        if flat is None:
            flat = torch.cat([self.locals[name].reshape(-1) for name in shape.bucket.names])
        flat = self.memory.fetch(flat) if self.on_host.issuperset(shape.bucket.names) else flat
        return gather(shape, flat.to(out.dtype), out, self.scratch)

    def local(self, name: str) -> Tensor:
        """This rank's piece of a parameter on the device, in the storage dtype."""
        return self.memory.fetch(self.locals[name]) if name in self.on_host else self.locals[name]

    def _converted(self, name: str) -> Copies:
        storage, compute = self.layouts[name]
        local = self.local(name).to(self.dtypes[name])
        return {name: convert_value(local, storage, compute, self.mesh, shape=self.shapes[name])}

    def ready(self, segment: int) -> None:
        """Until what was gathered for the segment is there."""
        self._await(self.segments[segment])

    def _await(self, names: Iterable[str]) -> None:
        if self._gathering:
            for name in names:
                begun = self._gathering.get(name)
                if begun is not None:
                    self.copies.update(begun.result())
                    self._gathering = {key: one for key, one in self._gathering.items() if one is not begun}

    def free(self, names: Sequence[str]) -> None:
        """Drop copies that are gathered again. A micro-batch that is not run has not waited for them."""
        self._await(names)
        for name in names:
            if name in self.regathered:
                self.copies.pop(name, None)

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """Sums in the compute layout and the storage dtype: in the first one's memory, which nobody else has, where it
        is as large as the sum."""
        found = self.gradients.get(name)
        if found is None:
            self.gradients[name] = gradient
        elif name in self.summed:
            found.add_(gradient)
        elif found.dtype == self.wide[name] and found.untyped_storage().nbytes() == found.nbytes:
            found.add_(gradient)
            self.summed.add(name)
        else:
            self.gradients[name] = found.to(self.wide[name]) + gradient
            self.summed.add(name)

    def add_product(self, name: str, one: Tensor, other: Tensor) -> None:
        """The same of a gradient that is a product: added by the product itself where there is a sum to add to."""
        found = self.gradients.get(name)
        alike = found is not None and found.dtype == one.dtype == self.wide[name]
        if found is None or not alike or found.untyped_storage().nbytes() != found.nbytes:
            self.add_gradient(name, torch.mm(one, other))
        else:
            found.addmm_(one, other)
            self.summed.add(name)

    def scatter(self, segment: int) -> None:
        """Where the plan says so, a micro-batch's gradients go to the storage layout at once."""
        if self.plan.microbatches > 1:
            self._reduce(self.reductions[segment][True])

    def reduce(self, segment: int) -> None:
        """Begin to bring gradients of the segment's own parameters from the compute to the storage layout."""
        names = self.handed[segment]
        if names is None:
            for transfers in self.reductions[segment]:
                self._reduce(transfers)
            self._sum_replicas(self.replica_sums[segment])
            return
        for name in names:
            gradient = self.gradients.pop(name, None)
            if gradient is not None:
                self._add_stored(name, _own(gradient))
        if self.summed:
            self.summed.difference_update(names)

    def leaving(self, segment: int, *, last: bool) -> list[Bucket]:
        """The buckets that a backward of the segment fills. last: the gradients of other micro-batches are there."""
        once, each = self.reductions[segment]
        found = list(each.buckets) if last or self.plan.microbatches > 1 else []
        return [*once.buckets, *found] if last else found

    def reduce_bucket(self, bucket: Bucket) -> None:
        """Begin to reduce gradients that are all there."""
        own = {name: self.gradients.pop(name) for name in bucket.names}
        self.summed -= own.keys()
        shape, dtype = self._local_shape(bucket), self.wide[bucket.names[0]]
        if not self.scattered.names.isdisjoint(bucket.names):
            self._reducing.append(self.overlap.start(partial(self._bucket_scattered, shape, dtype, own)))
        else:
            self._reducing.append(self.overlap.start(partial(self._bucket_reduced, self._home(shape, dtype), own)))

    def _home(self, shape: Shape, dtype: torch.dtype) -> Home:
        there = not self.on_host.isdisjoint(shape.bucket.names)  # then nothing of it stays here
        return Home(shape, dtype, self.device) if there else self.homes.find(shape, dtype, self.device)

    def _reduce(self, transfers: Transfers) -> None:
        """Those that have not set out yet."""
        for bucket in transfers.buckets:
            if all(name in self.gradients for name in bucket.names):
                self.reduce_bucket(bucket)
        names = [name for bucket in transfers.buckets for name in bucket.names] + list(transfers.unbucketed)
        given = {name: self.gradients.pop(name) for name in names if name in self.gradients}
        self.summed -= given.keys()
        for name in self.home & given.keys():
            self._add_stored(name, _own(given.pop(name).to(self.wide[name])))
        if given:
            self._reducing.append(self.overlap.start(partial(self._reduced, given)))
        if self._reducing:
            self._hand_over(wait=False)

    def _bucket_reduced(self, home: Home, given: Mapping[str, Tensor]) -> Reduced:
        reduce(home.shape, given, home.flat, self.scratch)
        return {name: self._put(name, local) for name, local in home.gradients().items()}

    def _bucket_scattered(self, shape: Shape, dtype: torch.dtype, given: Mapping[str, Tensor]) -> Reduced:
        flat = torch.empty(sum(shape.counts), dtype=dtype, device=self.device)
        reduce(shape, given, flat, self.scratch)
        self.scattered.add(shape.views(flat))
        return {}

    def _sum_replicas(self, transfers: Transfers) -> None:
        """Of gradients that stopped on their way."""
        for bucket in transfers.buckets:
            home = self._home(self._local_shape(bucket), self.wide[bucket.names[0]])
            self._reducing.append(self.overlap.start(partial(self._bucket_summed, home)))
        if transfers.unbucketed:
            self._reducing.append(self.overlap.start(lambda: self._end(self.scattered.take(transfers.unbucketed))))

    def _bucket_summed(self, home: Home) -> Reduced:
        given = self.scattered.take(home.shape.bucket.names)
        whole = len(given) == len(home.shape.bucket.names)  # else some have no gradient
        return self._bucket_reduced(home, given) if whole else self._end(given)

    def _end(self, given: Mapping[str, Tensor]) -> Reduced:
        return {name: self._put(name, _own(self.scattered.summed(name, piece))) for name, piece in given.items()}

    def _put(self, name: str, gradient: Tensor) -> Tensor:
        """A gradient of a parameter that is stored on the host goes there: into memory that is used again, where nobody
        has kept what was there before."""
        if name not in self.on_host:
            return gradient
        found, users = self._host_homes.get(name, (None, 0))
        if found is None or storage_users(found) != users or found.stride() != gradient.stride():
            found = self.memory.like(gradient)
            self._host_homes[name] = found, storage_users(found)
        return self.memory.put(gradient, found.detach())

    def host_memory(self) -> list[Tensor]:
        """What is on the host for good."""
        return [*(self.locals[name] for name in self.on_host), *(found for found, _ in self._host_homes.values())]

    def _reduced(self, given: Mapping[str, Tensor]) -> Reduced:
        found: Reduced = {}
        for name, gradient in given.items():
            _, between, compute = self.legs[name]
            wide = gradient.to(self.wide[name])
            local = convert_gradient(wide, between, compute, self.mesh, shape=self.shapes[name])
            if name in self.scattered.names:
                self.scattered.add({name: _own(local)})
            else:
                found[name] = _own(local) if name not in self.on_host else self._put(name, local)
        return found

    def replica_gradient(self, name: str) -> Tensor | None:
        """What this stage's segments have summed for a replica, in its compute layout and the storage dtype."""
        self.summed.discard(name)
        found = self.gradients.pop(name, None)
        return None if found is None else found.to(self.wide[name])

    def add_stored(self, gradients: dict[str, Tensor]) -> None:
        """Gradients that come in the storage layout, from stages that had these parameters as tied_replicas."""
        for name, local in gradients.items():
            self._add_stored(name, self._put(name, local))

    def wait(self) -> None:
        """Until every reduction that was begun is over."""
        self._hand_over(wait=True)

    def _hand_over(self, *, wait: bool) -> None:
        """Reduced gradients, in the order they were begun, become those of the stored parameters."""
        while self._reducing and (wait or self._reducing[0].done()):
            for name, local in self._reducing.pop(0).result().items():
                self._add_stored(name, local)

    def _add_stored(self, name: str, local: Tensor) -> None:
        """Or are added to those that are there."""
        stored = self.stored[name]
        old = stored.grad
        if isinstance(old, DTensor):
            if name in self.on_host:
                self.memory.synchronize()
            local_tensor(old).add_(local)
        else:
            stored.grad = dtensor_like(_lying_as(local, local_tensor(self.like[name])), self.like[name])

    def reduced_gradients(self) -> list[Tensor]:
        """This rank's pieces of those that are in their storage layout by now, or stopped on the way there."""
        found = [entry.grad for name, entry in self.stored.items() if name not in self.on_host]
        pieces = list(self.scattered.pieces.values())
        return [gradient.to_local() for gradient in found if isinstance(gradient, DTensor)] + pieces

    def end_step(self) -> None:
        """Wait for reductions. Copies are refreshed at the next step: the optimizer changes what is stored."""
        self._hand_over(wait=True)
        if self.on_host:
            self.memory.synchronize()
        for begun in {id(begun): begun for begun in self._gathering.values()}.values():
            begun.result()
        self.abandon()

    def abandon(self) -> None:
        """Nothing of a step is left, whether it came to its end or not, but gradients that are stored."""
        self.homes.end_step()
        self._reducing.clear()
        self._gathering.clear()
        self.copies.clear()
        self.gradients.clear()
        self.scattered.pieces.clear()
        self.summed.clear()


def _lying_as(local: Tensor, stored: Tensor) -> Tensor:
    """A gradient in the order of what is stored: a convolution's may lie channels last, and fused optimizers read both
    as memory lies."""
    if local.stride() == stored.stride() or local.shape != stored.shape:
        return local
    return torch.empty_like(stored, dtype=local.dtype).copy_(local)


def _own(local: Tensor) -> Tensor:
    """In memory of its own: what it may be a part of can go."""
    return local if local.untyped_storage().nbytes() == local.nbytes else local.clone()


def as_dtensor(local: Tensor, mesh: DeviceMesh, layout: Layout, shape: tuple[int, ...]) -> DTensor:
    """This rank's piece of a tensor of this global shape, as the DTensor that optimizers and checkpoints know."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(1, length))
    kinds, size, steps = layout.placements(), torch.Size(shape), tuple(strides[: len(shape)])
    of = local.to("meta")  # `from_local` would copy what lies on the host to the mesh's devices
    like = DTensor.from_local(of, mesh, kinds, run_check=False, shape=size, stride=steps)
    found: DTensor = dtensor_like(local, like)
    return found
