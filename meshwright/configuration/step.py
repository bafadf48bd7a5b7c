"""A configuration's step: FrontierPoints of embedding, layers and head, played by the one clock.

One stage is played by its fast path (`price.overlap`). Stages are lists of Instructions for the simulator, with the
layers of a run as one segment; of many micro-batches those between the first and the last rounds are alike, so that
two shorter steps give the longer one.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property

from meshwright.capture.program import ITEM_BYTES
from meshwright.cluster import Cluster, Device, collective_s
from meshwright.configuration.block import Moved
from meshwright.configuration.configuration import Configuration
from meshwright.configuration.costs import BlockCost, block_cost, in_tf32, loaded
from meshwright.configuration.framework import Framework
from meshwright.configuration.layers import Layers
from meshwright.configuration.meshes import Meshes
from meshwright.configuration.parameters import hosted_bytes, with_parameters
from meshwright.configuration.transformer import Transformer
from meshwright.plan import Choice, FrontierPoint, Prediction
from meshwright.predict.fast import NOTHING, quick_prediction
from meshwright.schedule import ORDERS, lists, pipeline
from meshwright.simulate import Costs, SegmentCost, Timeline, Transfer, simulate

_CHOICE = Choice(0, (), (), {})
NCCL_BUFFER_BYTES = 4 * 2**20
"""NCCL_BUFFSIZE: what a send may leave behind before its receiver is there."""
DEPARTURES = 4
"""In how many parts the gradients of a layer leave while its backward runs."""


class Step:
    """What each block of one model costs under one configuration, and the step they make; replica: that of one
    data-parallel replica, where hosts differ."""

    def __init__(
        self,
        model: Transformer,
        given: Configuration,
        cluster: Cluster,
        framework: Framework,
        replica: int | None = None,
    ) -> None:
        model.verify()
        given.verify(model, cluster.device_count)
        self.model, self.given, self.framework = model, given, framework
        self.meshes = Meshes(cluster, given, 0, replica)
        self.stages = [self.meshes] * given.pp
        if replica is not None:
            self.stages[1:] = [Meshes(cluster, given, stage, replica) for stage in range(1, given.pp)]
        self.layers = Layers(model, given)
        self.known: dict[tuple[str, str, Meshes, float], FrontierPoint] = {}
        self._blocks: dict[Device, tuple[dict[str, BlockCost], tuple[float, float]]] = {}

    @property
    def blocks(self) -> dict[str, BlockCost]:
        return self._on(self.meshes.device)[0]

    def _on(self, device: Device) -> tuple[dict[str, BlockCost], tuple[float, float]]:
        """Costs of the blocks on a device, and how much longer they take where it does nothing but this."""
        if device not in self._blocks:
            model, layers = self.model, self.layers
            on = in_tf32(device) if self.given.precision == "tf32" else device
            blocks = {"embedding": block_cost(layers.embedding(), on)}
            blocks["head"] = block_cost(layers.head(), on)
            blocks["loss"] = block_cost(layers.loss(), on)
            if model.routed_layers < model.layers:
                blocks["dense"] = block_cost(layers.layer(), on)
            if model.routed_layers:
                blocks["routed"] = block_cost(layers.layer(routed=True), on)
            counts = {"dense": model.layers - model.routed_layers, "routed": model.routed_layers}
            every = [cost for name, cost in blocks.items() for _ in range(counts.get(name, 1))]
            self._blocks[device] = blocks, loaded(every, on, self.given.dtype)
        return self._blocks[device]

    def predict(self) -> Prediction:
        found = self.one_stage if self.given.pp == 1 else self._summed(self.timeline)
        return replace(found, host_bytes=max(map(self._host_bytes, range(self.given.pp))))

    def _share(self, stage: int) -> float:
        """Of the optimizer, what is on the host."""
        return self.given.offload[stage] if self.given.offload else 0.0

    def _host_bytes(self, stage: int) -> int:
        """What a rank of a stage has there."""
        if not self._share(stage):
            return 0
        meshes, counts = self.stages[stage], self.run_layers
        dense = self.model.layers - self.model.routed_layers
        found, first = 0, 0
        for run, count in enumerate(counts):
            plain = min(count, max(0, dense - first))
            blocks = {"dense": plain, "routed": count - plain, "embedding": run == 0, "head": run == len(counts) - 1}
            for name, times in blocks.items() if run % self.given.pp == stage else ():
                cost = self.blocks[name] if times else None
                for weights, mesh in (
                    ((cost.weights, meshes.data), (cost.expert_weights, meshes.experts)) if cost else ()
                ):
                    found += times * hosted_bytes(weights, mesh.axes[0].size, self.given, self._share(stage))
            first += count
        return found

    @property
    def held(self) -> list[tuple[Device, int]]:
        """Of each stage, its device and what a rank holds at its peak."""
        if self.given.pp == 1:
            return [(self.meshes.device, self.one_stage.peak_bytes)]
        every = zip(self.stages, self.timeline.stages, strict=True)
        return [(meshes.device, times.peak_bytes) for meshes, times in every]

    @property
    def first_bytes(self) -> int:
        """What a rank of the first stage holds at its peak."""
        return self.one_stage.peak_bytes if self.given.pp == 1 else self.timeline.stages[0].peak_bytes

    @property
    def last_bytes(self) -> int:
        """The same of the last stage."""
        return self.one_stage.peak_bytes if self.given.pp == 1 else self.timeline.stages[-1].peak_bytes

    @property
    def layer_name(self) -> str:
        """The block that most layers are."""
        return "dense" if "dense" in self.blocks else "routed"

    @cached_property
    def one_stage(self) -> Prediction:
        points = [self.point("embedding"), *self._layer_points(0, 0, self.model.layers)]
        points += [self.point("head"), self.point("loss")]
        return quick_prediction(self._hosted(points), self.given.microbatches, True)

    def _hosted(self, points: list[FrontierPoint]) -> list[FrontierPoint]:
        """A device that waits for its host takes what the host needs, and what follows the last backward comes after
        that: reductions that nothing hides, the optimizer. Where a host reads what arrives, it can not be ahead: its
        forward and its backward count alone."""
        device_s = [sum(one.forward_s for one in points), sum(one.backward_s for one in points)]
        host_s = [sum(one.forward_host_s for one in points), sum(one.backward_host_s for one in points)]
        if self.given.pp == 1 or not self.given.in_turn:
            device_s, host_s = [sum(device_s)] * 2, [sum(host_s)] * 2
        there, back = (max(1.0, self.stalled(host) / device) for host, device in zip(host_s, device_s, strict=True))
        return [
            replace(
                point,
                forward_s=there * point.forward_s,
                backward_input_s=back * point.backward_input_s,
                backward_weight_s=back * point.backward_weight_s,
                forward_host_s=0.0,
                backward_host_s=0.0,
            )
            for point in points
        ]

    def _layer_points(self, stage: int, first: int, end: int, recomputed: int | None = None) -> list[FrontierPoint]:
        """recomputed: how many of them, the first ones, make their activations again; all by the configuration."""
        dense = self.model.layers - self.model.routed_layers
        return [
            self.point(
                "dense" if index < dense else "routed",
                self.given.recompute if recomputed is None else "full" if index - first < recomputed else "none",
                stage,
            )
            for index in range(first, end)
        ]

    def point(self, name: str, policy: str = "none", stage: int = 0) -> FrontierPoint:
        meshes = self.stages[stage]
        key = name, policy, meshes, self._share(stage)
        if key not in self.known:
            self.known[key] = self._priced(*key)
        return self.known[key]

    def _priced(self, name: str, policy: str, meshes: Meshes, share: float) -> FrontierPoint:
        """share: of the optimizer, what is on the host."""
        blocks, load = self._on(meshes.device)
        cost = blocks[name]
        alone = name == "loss"  # one op at a time holds anything large, so that gradients replace what forward held
        slower = self.framework.kernels
        forward_s, inputs_s, weights_s = (slower * one for one in cost.whole.under(load))
        recompute_s = slower * sum(cost.again[policy].under(load))
        there_s, there_wire_s = self._moved_s(cost, False, meshes)
        back_s, back_wire_s = self._moved_s(cost, True, meshes)
        if policy == "full":
            back_s, back_wire_s = back_s + there_s, back_wire_s + there_wire_s
        host_s = self._host_s(cost)
        again_host = recompute_s / forward_s if forward_s else 0.0
        kept = cost.kept_bytes[policy] + (self.layers.stream_bytes if policy in ("full", "ops") else 0)
        back_bytes = (1 if self.given.fused or alone else 2) * cost.working_bytes
        back_bytes += cost.kept_bytes["none"] - cost.kept_bytes[policy]
        point = FrontierPoint(
            _CHOICE, forward_s + there_s, inputs_s + recompute_s + back_s, weights_s, 0.0, 0.0, 0.0, 0.0, 0, kept,
            cost.working_bytes, back_bytes,
            forward_host_s=host_s[0], backward_host_s=host_s[1] + again_host * host_s[0],
            forward_wire_s=there_wire_s, backward_wire_s=back_wire_s, grad_buckets=DEPARTURES,
        )  # fmt: skip
        for count, expert in ((cost.weights, False), (cost.expert_weights, True)):
            mesh = meshes.experts if expert else meshes.data
            point = with_parameters(point, count, mesh, self.given, share) if count else point
        return point

    def _moved_s(self, cost: BlockCost, backward: bool, meshes: Meshes) -> tuple[float, float]:
        """Seconds of collectives between ops, and of those on links that parameters use too."""
        found = wire_s = 0.0
        for one in cost.moved:
            if one.backward == backward:
                seconds = collective_s(one.kind, one.bytes, meshes.axis(one.axis))
                seconds *= 1.0 - self._hidden(one)
                seconds = max(0.0, seconds - one.behind_attention * self.framework.kernels * cost.attention_s[backward])
                found += seconds
                wire_s += seconds if meshes.shares_links(one.axis) else 0.0
        return found, wire_s

    def _hidden(self, one: Moved) -> float:
        """Which share of a collective overlaps products."""
        if one.axis != "tp":
            return 0.0
        return max(self.given.tp_pipelined, self.given.tp_overlap if one.backward and one.hidden_by >= 0 else 0.0)

    def _host_s(self, cost: BlockCost) -> tuple[float, float]:
        each_s = self.framework.op_host_s
        if not each_s:
            return cost.host_s
        there, back = (1.5 * cost.ops + sum(one.backward == way for one in cost.moved) for way in (False, True))
        return there * each_s, back * each_s

    @cached_property
    def timeline(self) -> Timeline:
        """Of the stages of a pipeline."""
        given = self.given
        counts = self.run_layers
        rows, first = [], 0
        for run, count in enumerate(counts):
            stage = run % given.pp
            recomputed = given.recomputed[stage] if given.recomputed else None
            points = self._layer_points(stage, first, first + count, recomputed)
            points = [self.point("embedding", stage=stage)] * (run == 0) + points
            if run == len(counts) - 1:
                points += [self.point("head", stage=stage), self.point("loss", stage=stage)]
            row = self._run_cost(points, stage)
            rows.append(self._in_turn(row, stage) if given.in_turn else row)
            first += count
        few = [m for m in self._shorter() if m < given.microbatches]
        if len(few) < 2:
            return self._played(rows, given.microbatches)
        low, high = (self._played(rows, m) for m in few)
        rounds = (given.microbatches - few[1]) / (few[1] - few[0])
        stages = high.stages
        if given.schedule == "gpipe":  # every micro-batch waits for backward
            stages = tuple(
                replace(more, peak_bytes=more.peak_bytes + round(rounds * (more.peak_bytes - less.peak_bytes)))
                for less, more in zip(low.stages, high.stages, strict=True)
            )
        return replace(high, step_s=high.step_s + rounds * (high.step_s - low.step_s), stages=stages)

    def _shorter(self) -> tuple[int, int]:
        """Two numbers of micro-batches past the warm-up, a round apart, that end as the whole number does."""
        pp, rest = self.given.pp, self.given.microbatches % self.given.pp
        return 2 * pp + rest, 3 * pp + rest

    @property
    def run_layers(self) -> list[int]:
        """Where one or two layers are missing to equal runs, the head counts as one of them and the embedding as the
        other: Megatron-Core takes no other number (`account_for_embedding_in_pipeline_split`, and `..._loss_...`), and
        torchtitan gives what is left over to the stages between (`generate_split_points`)."""
        given, runs = self.given, self.given.pp * self.given.vpp
        if given.stage_layers and given.vpp == 1:
            return list(given.stage_layers)
        most = -(-self.model.layers // runs)
        missing = runs * most - self.model.layers
        if runs > 2 and most > 1 and missing in (1, 2):
            return [most - (missing == 2), *[most] * (runs - 2), most - 1]
        alone = [0] if runs > self.model.layers else []  # the head's run has no layer, then the embedding's
        first = [0] if runs > self.model.layers + 1 else []
        left, count = self.model.layers, runs - len(alone) - len(first)
        return [*first, *((run + 1) * left // count - run * left // count for run in range(count)), *alone]

    def _run_cost(self, points: list[FrontierPoint], stage: int) -> SegmentCost:
        """The segments of a run as one."""
        if not points:
            return SegmentCost.of(FrontierPoint(_CHOICE, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0))
        points = self._hosted(points)
        sums = {one.name: sum(getattr(point, one.name) for point in points) for one in fields(FrontierPoint)[1:]}
        sums["forward_transient_bytes"] = max(point.forward_transient_bytes for point in points)
        sums["backward_transient_bytes"] = max(point.backward_transient_bytes for point in points)
        sums["grad_buckets"], sums["lookup"] = DEPARTURES, False
        sums["step_host_s"] = 0.0
        if self.model.tied and stage in (0, self.given.pp - 1):
            shared = self.model.vocab // self.given.tp * self.model.hidden * ITEM_BYTES[self.given.stored]
            sums["step_s"] += collective_s("all_reduce", shared, self.meshes.wire(0)) / self.given.vpp
        return SegmentCost.of(FrontierPoint(_CHOICE, **sums))

    def stalled(self, host_s: float) -> float:
        between = self.given.pp > 1 and self.meshes.between_hosts
        return host_s * (1.0 + self.framework.stall * self.given.tp) if between else host_s

    def _played(self, rows: list[SegmentCost], microbatches: int) -> Timeline:
        given, count = self.given, len(rows)
        every = frozenset(range(count))
        sharded = self.meshes.data.axes[0].size > 1 and given.zero > 0
        made = pipeline(
            range(1, count + 1),
            microbatches,
            given.pp,
            gathered=every if sharded else frozenset(),
            regathered=every if sharded and given.zero == 3 else frozenset(),
        )
        order = ORDERS["interleaved" if given.vpp > 1 else given.schedule](made)
        transfers = {}
        for run in range(count - 1):
            source, target = run % given.pp, (run + 1) % given.pp
            if source != target:
                transfer = self._transfer(min(source, target))
                transfers[run, source, target] = transfers[run, target, source] = transfer
        scale = self.given.microbatches / microbatches
        shorter = [_per_step(row, scale) for row in rows] if scale > 1 and given.zero >= 2 else rows
        return simulate(lists(made, order), Costs(shorter, transfers, overlap=True), spans=False)

    def _transfer(self, stage: int) -> Transfer:
        """Hidden states between stages; each tensor-parallel rank sends its part where the next stage gathers them."""
        sent = self._sent_bytes
        seconds = 0.0 if self.given.in_turn else self._sent_s(stage)
        return Transfer(seconds, 0.0, sent, sent)

    @property
    def _sent_bytes(self) -> int:
        given = self.given
        whole = self.layers.tokens * self.model.hidden * self.layers.size
        return whole // given.tp if given.sp or given.vpp > 1 or given.in_turn else whole

    def _in_turn(self, row: SegmentCost, stage: int) -> SegmentCost:
        """With each micro-batch a stage waits for two messages: its gradient to the stage before, then an activation
        from there. Parts of what arrives are gathered by the tensor-parallel ranks, in a tensor that the host may have
        to fill. A message that NCCL's buffers do not hold keeps its sender as long as it lasts."""
        whole = self._sent_bytes * self.given.tp
        gathered_s = collective_s("all_gather", whole, self.stages[stage].axis("tp"))
        gathered_s += whole * self.framework.filled_s
        forward_s, backward_s = row.forward_s, row.backward_input_s
        if stage:
            forward_s += gathered_s + 2 * self._sent_s(stage - 1)
        if stage < self.given.pp - 1:
            held = self._sent_bytes > NCCL_BUFFER_BYTES
            backward_s += gathered_s + (2 * self._sent_s(stage) if held else 0.0)
        return replace(row, forward_s=forward_s, backward_input_s=backward_s)

    def _sent_s(self, stage: int) -> float:
        """A message between a stage and the next one."""
        return collective_s("send", self._sent_bytes, self.stages[stage].wire(stage))

    def _summed(self, found: Timeline) -> Prediction:
        fullest = max(found.stages, key=lambda stage: stage.peak_bytes)
        return replace(
            NOTHING,
            step_s=found.step_s,
            static_bytes=fullest.static_bytes,
            peak_bytes=fullest.peak_bytes,
            transient_bytes=fullest.peak_bytes - fullest.static_bytes,
            bubble=found.bubble,
        )


def _per_step(row: SegmentCost, scale: float) -> SegmentCost:
    """What happens with every micro-batch, of a step that has fewer of them."""
    return replace(
        row,
        gather_params_s=row.gather_params_s / scale,
        reduce_grads_s=row.reduce_grads_s / scale,
        reduce_per_microbatch_s=row.reduce_per_microbatch_s / scale,
        overlappable_s=row.overlappable_s / scale,
    )
