"""Plans for one device: rematerialisation, chunks, offloading and the number of micro-batches.

Nothing is sharded, so the frontiers of the traced segments are the whole space (`memory.curves`). Micro-batch counts
are searched in ascending order, as long as one that is left could be faster: on a CPU small micro-batches may be, whose
values stay in its caches. Orders that run segments forward more than once are searched in one micro-batch, and in
several where nothing else fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshwright.capture.optimizer import STATES
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Device, Mesh, load_cluster
from meshwright.cluster.tree import Group, Member
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.errors import PlanError, counted
from meshwright.generate.program import sharded_segments
from meshwright.pins.methods import FIXED
from meshwright.pins.offload import Offload
from meshwright.pins.parts import pin_parts
from meshwright.plan import Plan
from meshwright.plan.search_log import INTERRUPTED
from meshwright.plan.units import show_bytes, show_enough, show_limit
from meshwright.planner.effort import ANY_BYTES, CLOSE, FEW, NEAR, RETRIES
from meshwright.planner.infeasible.estimate import training_state_bytes
from meshwright.planner.infeasible.min_memory import smallest_budget
from meshwright.planner.infeasible.refusals import TO_HOST, NoRoomError, left_free, more_room
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
"""What a GPU's allocator may lose of a budget to fragmentation: a part of it, and so many bytes more."""

ALIKE = 0.02
"""Peaks within this part of each other count as equal where a fixed method does not fit."""

OFFLOADED = ("auto", "flat", *FIXED)
"""Methods of activation checkpointing beside which the host's memory is tried."""

FREE_PINS = ("microbatch", "microbatches", "zero", "sp", "offload")
TRIVIAL = ("mesh=1", "dp=1", "tp=1", "cp=1", "ep=1", "vpp=1", "pp=1")
"""Pins that restrict nothing on one device."""


def is_for_one_device(cluster: Cluster, pins: tuple[str, ...]) -> bool:
    """Whether the cluster is one device and no pin needs the search for shardings."""
    return cluster.device_count == 1 and all(text in TRIVIAL or pin_parts(text)[0] in FREE_PINS for text in pins)


def one_device_cluster(device: Device) -> Cluster:
    """A cluster of this device alone."""
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
    """The plans of all budgets in so many micro-batches: `.within(bytes)`."""
    mesh, setting = one_device_mesh(one_device_cluster(device)), Setting(optimizer, precision, compile=compile)
    return curves(program, one_device_plan(program, mesh, setting, microbatches, device.name), device, fused=compile)


def room_bytes(budget: int | None, device: Device) -> int | None:
    """Bytes of a budget that a plan may fill: on a GPU, less what its allocator may lose."""
    if budget is None or device.kind != "cuda":
        return budget
    return int(budget * (1 - LOSS)) - min(LOSS_BYTES, budget // 20)


def budget_bytes(room: int, device: Device) -> int:
    """The smallest budget of which a plan may fill `room` bytes."""
    return smallest_budget(lambda budget: (room_bytes(budget, device) or 0) >= room, room - 1, 2 * room + LOSS_BYTES, 1)


def one_device_search(
    request: PlanRequest,
    pins: tuple[str, ...],
    method: str = "auto",
    log: SearchRecorder | None = None,
    may_offload: bool = False,
) -> Plan:
    """The fastest plan that fits. Raises NoRoomError where none does and the request wants one that fits.

    may_offload: optimizer states and weights may be offloaded to the host.
    """
    if may_offload and method not in OFFLOADED:
        given, todo = f"offload=auto with recompute={method} on one device", "leave recompute to the planner"
        raise PlanError(given, f"recompute={', '.join(OFFLOADED[:-1])} or {OFFLOADED[-1]} beside it", todo)
    mesh = one_device_mesh(request.cluster)
    search = OneDeviceSearch(request, mesh, microbatch_counts(request, mesh, pins), method, log or SearchRecorder())
    search.room = mesh.device.limit_bytes(room_bytes(request.memory_bytes, mesh.device), request.headroom)
    search.host = request.cluster if may_offload and not request.setting.offload else None
    state_bytes = training_state_bytes(request.program, request.setting)
    found = None if request.fit and search.host is None and state_bytes > search.room else search.best()
    if found is None and not request.fit:
        found = search.plan_over_budget()
    if found is None:
        raise search.refusal()
    return found


def microbatch_counts(request: PlanRequest, mesh: Mesh, pins: tuple[str, ...] = ()) -> tuple[int, ...]:
    """Numbers of micro-batches to search, ascending."""
    return candidates_on(request.program, [mesh], pins, request.setting)[0].microbatches


@dataclass(slots=True)
class OneDeviceSearch:
    """Search over the numbers of micro-batches of a request on one device.

    numbers: of micro-batches, ascending.
    room: bytes that a plan may fill.
    host: the cluster, where optimizer states and weights may be offloaded to its host.
    offloaded: numbers of micro-batches of which no other lower bound is known than that without a memory limit.
    """

    request: PlanRequest
    mesh: Mesh
    numbers: tuple[int, ...]
    method: str = "auto"
    log: SearchRecorder = field(default_factory=SearchRecorder)
    room: int = 0
    host: Cluster | None = None
    offloaded: set[int] = field(default_factory=set)
    known: dict[int, Curves] = field(default_factory=dict)
    timed: dict[int, list[RematPoint]] = field(default_factory=dict)

    def within(self, room: int) -> Plan | None:
        """The fastest plan in so many bytes; what is found for one room serves the others."""
        return replace(self, room=room).best()

    @property
    def least_bytes(self) -> int:
        """The least peak in the fewest or the most micro-batches, with every segment run forward once."""
        every = [self.curves(number) for number in {self.numbers[0], self.numbers[-1]}]
        return min(one.within(one.least_bytes, "flat").predicted.peak_bytes for one in every)

    def curves(self, number: int) -> Curves:
        if number not in self.known:
            self.known[number] = self._curves(number, self.request.setting)
        return self.known[number]

    def best(self) -> Plan | None:
        """The fastest plan that fits; of equals that with the fewest micro-batches."""
        best: Plan | None = None
        bounds: list[float] = []
        tight: list[int] = []
        for number in self.numbers:
            floor_s = self.floor_s(number)
            node = counted(number, "micro-batch")
            if best is not None and (STOP.requested or floor_s >= best.predicted.step_s * (1 - self.request.gap)):
                bounds.append(floor_s)
                if STOP.requested:
                    self.log.stopped(node, INTERRUPTED, floor_s)
                else:
                    self.log.pruned(node, "so many micro-batches or more are no faster than its bound", floor_s)
                break
            plan, bound_s = self._best_in(number, nest=number == 1), self.bound_s(number)
            self.log.expanded(node, "" if plan else "nothing fits", bound_s, plan.predicted.step_s if plan else None)
            if plan is None:
                tight.append(number)
                bounds.append(bound_s)
                continue
            bounds.append(bound_s if number in self.offloaded else plan.predicted.step_s * (1 - plan.predicted.gap))
            best = self._faster(best, plan)
            if best.predicted.step_s <= floor_s * (1 + CLOSE):
                break
        for number in tight if best is None and self.method == "auto" else ():
            plan = self._best_in(number) if number > 1 else None
            best = self._faster(best, plan) if plan else best
        if best is None:
            return None
        gap = 1 - min(bounds, default=0.0) / best.predicted.step_s if best.predicted.step_s else 0.0
        return best.with_prediction(gap=1.0 if STOP.requested else max(0.0, gap))  # 1: no bound is known

    def plan_over_budget(self) -> Plan | None:
        """A plan where none fits: of the most micro-batches, or by a fixed method the fastest of the least peak."""
        numbers = self.numbers if self.method in FIXED else self.numbers[-1:]
        made = [self.curves(number).find(ANY_BYTES, self.request.memory_bytes, self.method) for number in numbers]
        found = [plan for plan in made if plan]
        least = min((plan.predicted.peak_bytes for plan in found), default=0)
        lean = [plan for plan in found if plan.predicted.peak_bytes <= least * (1 + ALIKE)]
        return min(lean, key=lambda plan: plan.predicted.step_s, default=None)

    def _faster(self, best: Plan | None, plan: Plan) -> Plan:
        if best is not None and plan.predicted.step_s >= best.predicted.step_s * (1 - CLOSE):
            return best
        self.log.incumbent(counted(plan.microbatches, "micro-batch"), plan.predicted.step_s)
        return plan

    def _best_in(self, number: int, nest: bool = True) -> Plan | None:
        """The fastest in so many micro-batches. nest: segments may run forward more than once."""
        plan = self._fitted(self.curves(number), nest)
        bound_s = self.bound_s(number) if self.host else 0.0
        if self.host is None or (plan is not None and plan.predicted.step_s <= bound_s * (1 + CLOSE)):
            return plan
        self.offloaded.add(number)
        for kind in ("optimizer", "weight"):
            other = self._offloading(self.host, kind, number)
            if other is not None and (plan is None or other.predicted.step_s < plan.predicted.step_s * (1 - CLOSE)):
                plan = other
            if plan is not None and plan.predicted.step_s <= bound_s * (1 + NEAR):
                break
        return plan

    def _offloading(self, host: Cluster, kind: str, number: int) -> Plan | None:
        """The fastest of a few fractions of optimizer states, or of weights, on the host."""
        curves, best = self.curves(number), None
        pieces = stage_pieces(curves.plan, self.request.program, 0)
        states = STATES[self.request.setting.optimizer]
        held = sum(piece.point.static_bytes for piece in pieces)
        held = held * states // (2 + states) if kind == "optimizer" else held
        missing = curves.peak_of([min(ways, key=lambda way: way.seconds) for ways in curves.options]) - self.room
        for offload in tried(kind, missing, held) if held else ():
            plan = self._fitted(self._offloaded_curves(host, offload, number), nest=False)
            if plan is not None and (best is None or plan.predicted.step_s < best.predicted.step_s):
                best = plan
        return best

    def _curves(self, number: int, setting: Setting) -> Curves:
        return curves(self.request.program, self._base(number, setting), self.mesh.device, fused=setting.compile)

    def _base(self, number: int, setting: Setting | None = None) -> Plan:
        request = self.request
        return one_device_plan(request.program, self.mesh, setting or request.setting, number, request.cluster.name)

    def _offloaded_curves(self, host: Cluster, offload: Offload, number: int) -> Curves:
        return self._curves(number, offloading(self.request.setting, self.request.program, host, offload))

    def _leanest_curves(self, number: int) -> Curves:
        """With all weights on the host where they may be offloaded."""
        return self._offloaded_curves(self.host, Offload("weight"), number) if self.host else self.curves(number)

    def _fitted(self, found: Curves, nest: bool) -> Plan | None:
        """The fastest plan within the room, if any. A peak above the search's count is searched again in less."""
        room = self.room
        for _ in range(RETRIES):
            plan = found.find(room, self.request.memory_bytes, self.method, nest)
            over = plan.predicted.peak_bytes - self.room if plan else 0
            if over <= 0:
                return plan
            room -= over
        plan = self._if_fits(self._leanest_flat(found))
        if plan is None and nest and self.method == "auto":
            room = min(self.room, found.least_bytes - 1)  # so little that only nested orders count as fitting
            plan = self._if_fits(found.find(room, self.request.memory_bytes, "auto"))
        return plan

    def _if_fits(self, plan: Plan | None) -> Plan | None:
        return plan if plan and plan.predicted.peak_bytes <= self.room else None

    def _leanest_flat(self, found: Curves) -> Plan | None:
        """The plan of the least bytes with every segment run forward once, where the method allows it."""
        return (
            found.find(found.least_bytes, self.request.memory_bytes, "flat")
            if self.method in ("auto", "flat")
            else None
        )

    def bound_s(self, number: int) -> float:
        """Lower bound on the step in so many micro-batches: that without a memory limit."""
        found = self.curves(number)
        hosts = (min(way.forward_host_s + way.backward_host_s for way in ways) for ways in found.options)
        return self._step_s(found.plan, number * found.fastest_s, number * sum(hosts))

    def floor_s(self, number: int) -> float:
        """Lower bound on the step in so many micro-batches or more.

        Each forward and each backward takes its time at the best size, since a large micro-batch may run in chunks.
        """
        left = [other for other in self.numbers if other >= number]
        passes = zip(*([(n * way.forward_s, n * way.backward_s) for way in self.ways(n)] for n in left), strict=True)
        passes_s = (min(forward for forward, _ in one) + min(backward for _, backward in one) for one in passes)
        host_s = min(n * sum(way.forward_host_s + way.backward_host_s for way in self.ways(n)) for n in left)
        return self._step_s(self._base(number), sum(passes_s), host_s)

    def _step_s(self, plan: Plan, passes_s: float, host_s: float) -> float:
        """The step with the optimizer. passes_s: all forwards and backwards. host_s: their launches on the host."""
        points = [piece.point for piece in stage_pieces(plan, self.request.program, 0)]
        return max(passes_s + sum(one.step_s for one in points), host_s + sum(one.step_host_s for one in points))

    def ways(self, number: int) -> list[RematPoint]:
        """The fastest way to run each segment, without chunks and without a memory limit."""
        if number not in self.timed:
            device, compile = self.mesh.device, self.request.setting.compile
            costs, traced = NodeCosts(device, compile, self.mesh), traced_for(device)
            joints = [traced(graph) for graph in sharded_segments(self.request.program, self._base(number))]
            curves = [kept_curve(one, costs) if costs.fused else (fastest_way(one, costs),) for one in joints]
            self.timed[number] = [min(ways, key=lambda way: way.seconds) for ways in curves]
        return self.timed[number]

    def refusal(self) -> NoRoomError:
        """Why no plan fits, and the smallest budget found that does.

        All numbers of micro-batches are asked where segments are few, else the fewest and the most.
        """
        exact = len(self.request.program.segments) <= FEW
        every = self.numbers if exact or self.method in FIXED else {self.numbers[0], self.numbers[-1]}
        method = "flat" if self.host and self.method == "auto" else self.method  # as plans that offload are searched
        found = [(*self._leanest_curves(number).least(method, self.room), number) for number in every]
        likely = found if self.method in FIXED else [min(found, key=lambda one: (one[0], one[2]))]
        rooms = [(self._smallest_room(number, size), number, how, size) for size, how, number in likely]
        (least, number, how, counted_bytes), device = min(rooms), self.mesh.device
        needed = least if self.request.memory_bytes is None else budget_bytes(least, device)
        lost = f"; {show_bytes(needed - least)} of it may be lost by the allocator" if needed > least else ""
        limit = budget_bytes(least, device)
        if self.request.memory_bytes is None and limit > least:
            lost = f" (as --memory on a larger device {show_enough(limit)}, of which the allocator may lose some)"
        by = "" if self.method == "auto" else f" with recompute={self.method}"
        exact &= self.host is None and least == counted_bytes
        sure = "one byte less is refused" if exact else "less may be enough"
        more = needed - (self.room if self.request.memory_bytes is None else self.request.memory_bytes)
        cut = ("in one micro-batch" if number == 1 else f"in {number} micro-batches") + how
        cut += ", with weights and optimizer state on the host" if self.host else ""
        given = show_limit(self.request.memory_bytes or self.room)
        free = "" if self.request.memory_bytes else left_free(self.request.headroom)
        return NoRoomError(
            f"no plan fits{by} in {given} on one device ({device.name}{free})",
            f"{needed:,} bytes ({show_enough(needed)}) are enough, {show_bytes(more)} more: {cut}{lost}; {sure}",
            self._todo(number, least) or ", ".join(self._advice(least)),
            needed,
        )

    def _smallest_room(self, number: int, counted_bytes: int) -> int:
        """The least bytes in which a plan fits by its predicted peak. counted_bytes: those by the search's count."""
        least, found = counted_bytes, self._leanest_curves(number)
        for _ in range(RETRIES):
            plan = replace(self, room=least)._fitted(found, nest=self.host is None)
            if plan is not None:
                return least
            over = found.find(least, self.request.memory_bytes, self.method, self.host is None)
            least = max(least, over.predicted.peak_bytes if over else least)
        smallest = self._leanest_flat(found)
        return max(least, smallest.predicted.peak_bytes) if smallest else least

    def _todo(self, number: int, least_bytes: int) -> str:
        """Advice where no batch is small enough: parameters, gradients and optimizer states alone are too large."""
        found = self._leanest_curves(number)
        always = found.static_bytes + sum(found.gradients)
        if always <= self.room:
            return ""
        ways = [self._more_room(least_bytes), "shard over several devices"]
        ways += self._to_host()
        ways += ["store all in half precision (--precision bf16)"] if self.request.setting.precision != "bf16" else []
        what = "parameters, their copies for compute, gradients, optimizer state and workspaces"
        taken = f"{what} take {show_bytes(always)} at any batch size"
        return f"{', '.join(ways[:-1])} or {ways[-1]}: {taken}"

    def _more_room(self, least_bytes: int) -> str:
        """Advice on the limit, or on what is left free where none is given."""
        return more_room(self.request.headroom, least_bytes, self.mesh.device) or "raise the limit"

    def _advice(self, least_bytes: int) -> list[str]:
        """Advice where a smaller batch would fit."""
        ways = [self._more_room(least_bytes)] + (["leave the method to auto"] if self.method != "auto" else [])
        return [*ways, *(["make the batch smaller"] if self.request.program.batch > 1 else []), *self._to_host()]

    def _to_host(self) -> list[str]:
        """Advice where more could be offloaded to the host."""
        setting = self.request.setting
        if setting.offload == "weight" and setting.offloaded is not None:
            return ["put all weights on the host (--pin offload=weights)"]
        more = self.host is None and setting.offload != "weight" and has_host_link(self.mesh.device)
        if not more or self.method not in OFFLOADED:
            return []
        return ["put weights on the host too (--pin offload=auto)" if setting.offload else TO_HOST]
