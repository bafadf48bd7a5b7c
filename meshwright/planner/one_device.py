"""Plans for one device: what to keep, recompute, chunk and offload, and in how many micro-batches.

There is nothing to shard: for every number of micro-batches the curves of the traced segments are the whole space
(`memory.curves`). Numbers are looked at from few to many, as long as one of those left could be faster: on a CPU small
micro-batches may be, whose values stay in its caches. Orders that run segments forward more than once are looked for in
one micro-batch, and in several where nothing else fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshwright.capture.optimizer import STATES
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Device, Mesh, load_cluster
from meshwright.cluster.tree import Group, Member
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.errors import counted
from meshwright.generate.program import sharded_segments
from meshwright.pins.methods import FIXED
from meshwright.pins.offload import Offload
from meshwright.pins.parts import pin_parts
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_enough, show_limit
from meshwright.planner.effort import ANY_BYTES, CLOSE, EXACT, NEAR, RETRIES
from meshwright.planner.infeasible.no_room import NoRoomError
from meshwright.planner.infeasible.report import TO_HOST, state_bytes
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.curves import Curves, curves
from meshwright.planner.memory.offload import has_host_link, offloading, tried
from meshwright.planner.memory.plans import one_device_plan
from meshwright.planner.request import PlanRequest
from meshwright.planner.search_log import SearchRecorder
from meshwright.planner.space.candidates import candidates_on
from meshwright.predict.pieces import stage_pieces
from meshwright.price.parameter import Setting
from meshwright.remat.curve import RematPoint, fastest_way, kept_curve
from meshwright.remat.traced import traced_for

LOSS, LOSS_BYTES = 0.02, 400 << 20
"""What a GPU's allocator may lose of a budget to pieces that fit nothing: a part of it, and so many bytes more."""

ALIKE = 0.02
"""Peaks closer than this part are one to a method that does not fit."""

ALLOWED = ("microbatch", "microbatches", "zero", "sp", "offload")
TRIVIAL = ("mesh=1", "dp=1", "tp=1", "cp=1", "ep=1", "vpp=1", "pp=1")
"""Pins that leave nothing open on one device."""


def is_for_one_device(cluster: Cluster, pins: tuple[str, ...]) -> bool:
    """Whether pins speak of nothing that only a search for shardings reads."""
    return cluster.device_count == 1 and all(text in TRIVIAL or pin_parts(text)[0] in ALLOWED for text in pins)


def one_device_cluster(device: Device) -> Cluster:
    """Of this device alone."""
    local = load_cluster("local:1")
    if device == local.devices[0]:
        return local
    backend = "nccl" if device.kind == "cuda" else "gloo"
    root = Group("host", local.root.link, (Member(device.name, 1),))
    return Cluster(device.name, backend, (device,), root, local.overhead_s)


def one_device_mesh(cluster: Cluster) -> Mesh:
    return cluster.mesh((1,)).renamed(("rep",))


def fit_curves(
    program: Program,
    device: Device,
    *,
    optimizer: str = "adamw",
    precision: str = "fp32",
    compile: bool = False,
    microbatches: int = 1,
) -> Curves:
    """Every budget's plan at once: `.within(bytes)`."""
    mesh, name = one_device_mesh(one_device_cluster(device)), device.name
    return _curves(program, mesh, name, Setting(optimizer, precision, compile=compile), microbatches)


def _curves(program: Program, mesh: Mesh, cluster: str, setting: Setting, microbatches: int) -> Curves:
    return curves(program, _base(program, mesh, cluster, setting, microbatches), mesh.device, fused=setting.compile)


def _base(program: Program, mesh: Mesh, cluster: str, setting: Setting, microbatches: int) -> Plan:
    return one_device_plan(
        program,
        mesh,
        cluster=cluster,
        optimizer=setting.optimizer,
        precision=setting.precision,
        compile=setting.compile,
        microbatches=microbatches,
        offload=setting.offload,
        offloaded=setting.offloaded,
    )


def room_bytes(budget: int | None, device: Device) -> int | None:
    """What of a budget a plan may fill: on a GPU, less what its allocator may lose."""
    if budget is None or device.kind != "cuda":
        return budget
    return int(budget * (1 - LOSS)) - min(LOSS_BYTES, budget // 20)


def budget_bytes(room: int, device: Device) -> int:
    """The smallest budget of which a plan may fill so much."""
    low, high = room, 2 * room + LOSS_BYTES
    while low < high:
        middle = (low + high) // 2
        if (room_bytes(middle, device) or 0) >= room:
            high = middle
        else:
            low = middle + 1
    return low


def one_device_search(
    request: PlanRequest,
    pins: tuple[str, ...],
    method: str = "auto",
    log: SearchRecorder | None = None,
    hosts: bool = False,
) -> Plan:
    """The fastest that fits. pins: of the mesh and of micro-batches. hosts: optimizer state and weights may live on the
    host. Raises NoRoomError where none does and the request wants one that fits."""
    program, cluster, memory_bytes, setting = request.program, request.cluster, request.memory_bytes, request.setting
    mesh = one_device_mesh(cluster)
    numbers = candidates_on(program, [mesh], pins, setting)[0].microbatches
    room = mesh.device.limit_bytes(room_bytes(memory_bytes, mesh.device), request.headroom)
    search = _Search(program, mesh, cluster.name, setting, method, numbers, room, memory_bytes, log or SearchRecorder())
    search.gap = request.gap
    search.hosted = cluster if hosts and method == "auto" and not setting.offload else None
    # No micro-batches, recomputation or chunks help where the training state alone is too large.
    hopeless = request.fit and search.hosted is None and state_bytes(program, setting) > room
    found = None if hopeless else search.best()
    if found is None and not request.fit:
        found = search.anyway()
    if found is None:
        raise search.refusal()
    return found


class OneDeviceAnswers:
    """What `plan` answers in any room of one device: what is found for one room serves the others."""

    def __init__(self, program: Program, mesh: Mesh, setting: Setting) -> None:
        numbers = candidates_on(program, [mesh], (), setting)[0].microbatches
        self._search = _Search(program, mesh, mesh.device.name, setting, "auto", numbers, 0, None, SearchRecorder())

    def within(self, room: int) -> Plan | None:
        self._search.room = room
        return self._search.best()

    @property
    def whole(self) -> Curves:
        """In one micro-batch."""
        return self._search.curves(1)

    @property
    def least_bytes(self) -> int:
        """In the fewest micro-batches or the most, no layer run forward more than once."""
        every = [self._search.curves(number) for number in {self._search.numbers[0], self._search.numbers[-1]}]
        return min(one.within(one.least_bytes, "flat").predicted.peak_bytes for one in every)


@dataclass(slots=True)
class _Search:
    """hosted: the cluster, where optimizer state and weights may live on its host. loose: numbers of micro-batches of
    which no other bound is known than with all the memory they want."""

    program: Program
    mesh: Mesh
    cluster: str
    setting: Setting
    method: str
    numbers: tuple[int, ...]
    room: int
    given: int | None
    log: SearchRecorder
    gap: float = 0.0
    hosted: Cluster | None = None
    loose: set[int] = field(default_factory=set)
    known: dict[int, Curves] = field(default_factory=dict)
    timed: dict[int, list[RematPoint]] = field(default_factory=dict)

    def curves(self, number: int) -> Curves:
        if number not in self.known:
            self.known[number] = _curves(self.program, self.mesh, self.cluster, self.setting, number)
        return self.known[number]

    def best(self) -> Plan | None:
        """The fastest of all numbers; of equals that with the fewest micro-batches."""
        best: Plan | None = None
        bounds: list[float] = []
        tight: list[int] = []
        for number in self.numbers:
            floor_s = self.floor_s(number)
            node = counted(number, "micro-batch")
            if best is not None and (STOP.asked or floor_s >= best.predicted.step_s * (1 - self.gap)):
                bounds.append(floor_s)
                self.log.pruned(node, "so many micro-batches or more are no faster than its bound", floor_s)
                break
            plan, bound_s = self._within(number, nest=number == 1), self.bound_s(number)
            self.log.expanded(node, "" if plan else "nothing fits", bound_s, plan.predicted.step_s if plan else None)
            if plan is None:
                tight.append(number)
                bounds.append(bound_s)
                continue
            bounds.append(bound_s if number in self.loose else plan.predicted.step_s * (1 - plan.predicted.gap))
            best = self._faster(best, plan)
            if best.predicted.step_s <= floor_s * (1 + CLOSE):
                break
        for number in tight if best is None and self.method == "auto" else ():
            plan = self._within(number) if number > 1 else None
            best = self._faster(best, plan) if plan else best
        if best is None:
            return None
        gap = 1 - min(bounds, default=0.0) / best.predicted.step_s if best.predicted.step_s else 0.0
        return best.with_prediction(gap=1.0 if STOP.asked else max(0.0, gap))  # 1: no bound is known

    def anyway(self) -> Plan | None:
        """Where nothing fits: in the most micro-batches; by a fixed method the fastest in about the least memory."""
        numbers = self.numbers if self.method in FIXED else self.numbers[-1:]
        made = [self.curves(number).find(ANY_BYTES, self.given, self.method) for number in numbers]
        found = [plan for plan in made if plan]
        least = min((plan.predicted.peak_bytes for plan in found), default=0)
        alike = [plan for plan in found if plan.predicted.peak_bytes <= least * (1 + ALIKE)]
        return min(alike, key=lambda plan: plan.predicted.step_s, default=None)

    def _faster(self, best: Plan | None, plan: Plan) -> Plan:
        if best is not None and plan.predicted.step_s >= best.predicted.step_s * (1 - CLOSE):
            return best
        self.log.incumbent(counted(plan.microbatches, "micro-batch"), plan.predicted.step_s)
        return plan

    def _within(self, number: int, nest: bool = True) -> Plan | None:
        plan = self._found(self.curves(number), nest)
        bound_s = self.bound_s(number) if self.hosted else 0.0
        if self.hosted is None or (plan is not None and plan.predicted.step_s <= bound_s * (1 + CLOSE)):
            return plan
        self.loose.add(number)
        for kind in ("optimizer", "weight"):
            other = self._on_host(self.hosted, kind, number)
            if other is not None and (plan is None or other.predicted.step_s < plan.predicted.step_s * (1 - CLOSE)):
                plan = other
            if plan is not None and plan.predicted.step_s <= bound_s * (1 + NEAR):
                break
        return plan

    def _on_host(self, cluster: Cluster, kind: str, number: int) -> Plan | None:
        """The fastest of a few fractions of optimizer state, or of weights, on the host."""
        curves, best = self.curves(number), None
        pieces = stage_pieces(curves.plan, self.program, 0)
        states = STATES[self.setting.optimizer]
        held = sum(piece.point.static_bytes for piece in pieces)
        held = held * states // (2 + states) if kind == "optimizer" else held
        missing = curves.peak_of([min(ways, key=lambda way: way.seconds) for ways in curves.options]) - self.room
        for offload in tried(kind, missing, held) if held else ():
            plan = self._found(self._curves_on_host(cluster, offload, number), nest=False)
            if plan is not None and (best is None or plan.predicted.step_s < best.predicted.step_s):
                best = plan
        return best

    def _curves_on_host(self, cluster: Cluster, offload: Offload, number: int) -> Curves:
        setting = offloading(self.setting, self.program, cluster, offload)
        return _curves(self.program, self.mesh, self.cluster, setting, number)

    def _smallest(self, number: int) -> Curves:
        """With all weights on the host where they may be."""
        return self._curves_on_host(self.hosted, Offload("weight"), number) if self.hosted else self.curves(number)

    def _found(self, found: Curves, nest: bool) -> Plan | None:
        """The fastest inside the room, if any."""
        room = self.room
        for _ in range(RETRIES):
            plan = found.find(room, self.given, self.method, nest)
            over = plan.predicted.peak_bytes - self.room if plan else 0
            if over <= 0:
                return plan
            room -= over
        plan = self._inside(self._least(found))
        if plan is None and nest and self.method == "auto":
            plan = self._inside(found.find(min(self.room, found.least_bytes - 1), self.given, "auto"))  # by its count
        return plan

    def _inside(self, plan: Plan | None) -> Plan | None:
        return plan if plan and plan.predicted.peak_bytes <= self.room else None

    def _least(self, found: Curves) -> Plan | None:
        """That of the fewest bytes in which every segment runs forward once, where the method may have it."""
        return found.find(found.least_bytes, self.given, "flat") if self.method in ("auto", "flat") else None

    def bound_s(self, number: int) -> float:
        """No step in so many micro-batches takes less: with all the memory it wants."""
        found = self.curves(number)
        hosts = (min(way.forward_host_s + way.backward_host_s for way in ways) for ways in found.options)
        return self._step_s(found.plan, number * found.fastest_s, number * sum(hosts))

    def floor_s(self, number: int) -> float:
        """No step in so many micro-batches or in more takes less. Each forward and each backward runs at its best size,
        for those of fewer micro-batches may run in chunks."""
        left = [other for other in self.numbers if other >= number]
        passes = zip(*([(n * way.forward_s, n * way.backward_s) for way in self.ways(n)] for n in left), strict=True)
        passes_s = (min(forward for forward, _ in one) + min(backward for _, backward in one) for one in passes)
        host_s = min(n * sum(way.forward_host_s + way.backward_host_s for way in self.ways(n)) for n in left)
        return self._step_s(_base(self.program, self.mesh, self.cluster, self.setting, number), sum(passes_s), host_s)

    def _step_s(self, plan: Plan, passes_s: float, host_s: float) -> float:
        """With the optimizer. passes_s: of all forwards and backwards; host_s: what the host takes to ask for them."""
        points = [piece.point for piece in stage_pieces(plan, self.program, 0)]
        return max(passes_s + sum(one.step_s for one in points), host_s + sum(one.step_host_s for one in points))

    def ways(self, number: int) -> list[RematPoint]:
        """The fastest of each segment in so many micro-batches, in no chunks, with all the memory it wants."""
        if number not in self.timed:
            plan = _base(self.program, self.mesh, self.cluster, self.setting, number)
            costs, traced = NodeCosts(self.mesh.device, self.setting.compile, self.mesh), traced_for(self.mesh.device)
            joints = [traced(graph) for graph in sharded_segments(self.program, plan)]
            curves = [kept_curve(one, costs) if costs.fused else (fastest_way(one, costs),) for one in joints]
            self.timed[number] = [min(ways, key=lambda way: way.seconds) for ways in curves]
        return self.timed[number]

    def refusal(self) -> NoRoomError:
        """Names the least that does, of all numbers where segments are few, else of the fewest and the most."""
        exact = len(self.program.segments) <= EXACT
        every = self.numbers if exact or self.method in FIXED else {self.numbers[0], self.numbers[-1]}
        method = "flat" if self.hosted else self.method  # as it is searched then
        refusals = [(self._smallest(number).refusal(method, self.room), number) for number in every]
        error, number = min(refusals, key=lambda one: (one[0].least_bytes, one[1]))
        device, least = self.mesh.device, self._that_fits(number, error.least_bytes)
        needed = least if self.given is None else budget_bytes(least, device)
        lost = f"; {show_bytes(needed - least)} of it may be lost by the allocator" if needed > least else ""
        limit = budget_bytes(least, device)
        if self.given is None and limit > least:
            lost = f" (as --memory on a larger device {show_enough(limit)}, of which the allocator may lose some)"
        by = "" if self.method == "auto" else f" with recompute={self.method}"
        # with some of it on the host less may do
        exact &= self.hosted is None and least == error.least_bytes
        sure = "one byte less is refused" if exact else "less may be enough"
        more = needed - (self.room if self.given is None else self.given)
        cut = ("in one micro-batch" if number == 1 else f"in {number} micro-batches") + error.how
        cut += ", with weights and optimizer state on the host" if self.hosted else ""
        return NoRoomError(
            f"no plan fits{by} in {show_limit(self.given or self.room)} on one device ({device.name})",
            f"{needed:,} bytes ({show_enough(needed)}) are enough, {show_bytes(more)} more: {cut}{lost}; {sure}",
            self._todo(number) or ", ".join(self._advice()),
            needed,
        )

    def _that_fits(self, number: int, counted_bytes: int) -> int:
        """Of the least by the search's count, what a plan fits in that it finds there: its own peak may be more."""
        least, found = counted_bytes, self._smallest(number)
        for _ in range(RETRIES):
            plan = replace(self, room=least)._found(found, nest=self.hosted is None)
            if plan is not None:
                return least
            over = found.find(least, self.given, self.method, self.hosted is None)
            least = max(least, over.predicted.peak_bytes if over else least)
        smallest = self._least(found)
        return max(least, smallest.predicted.peak_bytes) if smallest else least

    def _todo(self, number: int) -> str:
        """Where no batch is small enough: parameters, gradients and optimizer state are too large by themselves."""
        found = self._smallest(number)
        always = found.static_bytes + sum(found.gradients)
        if always <= self.room:
            return ""
        ways = ["raise the limit", "shard over several devices"]
        ways += self._to_host()
        ways += ["store all in half precision (--precision bf16)"] if self.setting.precision != "bf16" else []
        what = "parameters, their copies for compute, gradients, optimizer state and workspaces"
        taken = f"{what} take {show_bytes(always)} at any batch size"
        return f"{', '.join(ways[:-1])} or {ways[-1]}: {taken}"

    def _advice(self) -> list[str]:
        """Where a smaller batch would do."""
        ways = ["raise the limit"] + (["leave the method to auto"] if self.method != "auto" else [])
        return [*ways, *(["make the batch smaller"] if self.program.batch > 1 else []), *self._to_host()]

    def _to_host(self) -> list[str]:
        """Advice where more may lie on the host than does."""
        if self.setting.offload == "weight" and self.setting.offloaded is not None:
            return ["put all weights on the host (--pin offload=weights)"]
        if self.hosted is not None or self.setting.offload == "weight" or not has_host_link(self.mesh.device):
            return []
        return ["put weights on the host too (--pin offload=auto)" if self.setting.offload else TO_HOST]
