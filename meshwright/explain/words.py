"""A plan in the field's words: data parallel, ZeRO, FSDP, tensor, sequence, context, expert and pipeline parallel.

A plan is made of layouts. This module reads them back into the recipe that a practitioner would name. The four layout
states keep their letters, always next to the plain word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from meshwright.cluster import Mesh, collective_s
from meshwright.errors import counted
from meshwright.layout import Collective, Layout
from meshwright.plan import Choice, ParameterPlan, Plan, Stage
from meshwright.plan.records import Traffic
from meshwright.plan.units import show_bytes

ROLES = {
    "dp": "data parallel",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "rep": "the same work repeated",
}
STATES = {"R": "replicated", "I": "replicated", "P": "partial sum"}
SHARDED = {
    3: "FSDP (ZeRO-3)",
    2: "ZeRO-2 (gradients and optimizer state sharded)",
    1: "ZeRO-1 (optimizer state sharded)",
}
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zero-bubble": "zero-bubble",
    "searched": "searched schedule",
}
MOST = 0.9
"""The share of the weights from which on a storage is called that of the plan."""
LEAST = 0.005
"""Below this share it is not worth a word in one line: a few norms of a large model."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights are stored. level: the ZeRO level, 0 where they are stored as they are computed with; ways: over how
    many devices; split: compute itself splits them over data-parallel devices (a vocabulary); share: of the weights, by
    bytes where these are known; data_ways: over how many data-parallel devices they are split, stored or in compute."""

    level: int
    ways: int
    split: bool
    share: float
    data_ways: int = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a stage's devices do. degrees: devices by role (`dp`, `tp`, ...), those of one omitted. sequence: boundary
    activations are sharded along the sequence by the tensor-parallel devices. weighed: shares are of bytes."""

    degrees: Mapping[str, int]
    storages: tuple[Storage, ...]
    sequence: bool
    weighed: bool = False

    def __str__(self) -> str:
        parts = []
        data = self.degrees.get("dp", 1) * self.degrees.get("cp", 1)
        sharded = [one for one in self.storages if one.level]
        if sharded and not (self.weighed and self._held(sharded[0]) < LEAST):
            main = sharded[0]
            parts.append(self._sharded(main, sharded))
            if data > main.data_ways:
                parts.append(f"{data // main.data_ways} replicas (HSDP)")
        elif self.degrees.get("dp", 1) > 1:
            parts.append(f"data parallel (DDP) over {self.degrees['dp']}")
        for role in ("cp", "tp", "ep", "rep"):
            if (size := self.degrees.get(role, 1)) > 1:
                with_sequence = " with sequence parallel" if role == "tp" and self.sequence else ""
                parts.append(f"{ROLES[role]} over {self._over(size)}{with_sequence}")
        return " + ".join(parts) or "one device"

    def _over(self, size: int) -> str:
        """How many devices share work, and whether they are among those that weights are stored over."""
        sharded = [one.ways for one in self.storages if one.level]
        ways = sharded[0] if sharded else 1
        if ways * size <= prod(self.degrees.values()) or size > ways:
            return str(size)
        return f"the same {size}" if size == ways else f"{size} of these"

    def _sharded(self, main: Storage, sharded: list[Storage]) -> str:
        """FSDP drops gathered weights after forward or keeps them (ZeRO-3 or ZeRO-2); a plan may do both."""
        held = self._held(main)
        over = f"{SHARDED[main.level]} over {main.ways}"
        if held >= MOST:
            return over
        levels = sorted({one.level for one in sharded}, reverse=True)
        if levels == [3, 2]:
            return f"FSDP over {main.ways} ({self._shares(main)})"
        if not self.weighed:
            return f"{over} for most weights"
        shares = {level: sum(one.share for one in sharded if one.level == level) for level in levels}
        others = [f", ZeRO-{level} for {share:.0%}" for level, share in shares.items() if level != main.level]
        return f"{over} for {shares[main.level]:.0%} of the weights{''.join(others)}"

    def _held(self, main: Storage) -> float:
        return sum(one.share for one in self.storages if one.level == main.level or one.split)

    def _shares(self, main: Storage) -> str:
        other = 5 - main.level
        if not self.weighed:
            return "ZeRO-3 for some weights, ZeRO-2 for others"
        share = sum(one.share for one in self.storages if one.level == main.level)
        return f"ZeRO-{main.level} for {share:.0%} of the weights, ZeRO-{other} for others"


def role_of(axis_name: str) -> str:
    """`dp2` does what `dp` does."""
    return axis_name.rstrip("0123456789")


def layout_words(layout: str, mesh: Mesh) -> str:
    """`[S(0), S(0), R]` -> `sharded on dim 0 over dp and dp2, replicated over tp`; axes of one device are left out."""
    axes: dict[str, list[str]] = {}
    for axis, state in zip(mesh.axes, Layout.parse(layout), strict=True):
        if axis.size > 1:
            axes.setdefault(f"sharded on dim {state.dim}" if state.is_shard else STATES[state.kind], []).append(
                axis.name
            )
    if set(axes) <= {"replicated"}:
        return "replicated"
    return ", ".join(f"{word} over {' and '.join(names)}" for word, names in axes.items())


def weight_words(entry: ParameterPlan, mesh: Mesh, microbatches: int) -> str:
    """How a weight is computed with and stored, the layouts next to the words."""
    text = f"{layout_words(entry.compute, mesh)} {entry.compute}"
    level, ways, _ = stored(entry, mesh, microbatches)
    if not level:
        return text
    when = "for each use" if entry.reshard_after_forward else "once a step"
    return f"{text}; stored sharded over {ways} {entry.storage}, gathered {when} (ZeRO-{level})"


def state_words(layout: str, names: Iterable[str]) -> str:
    """`[S(0), R]` -> `sharded on dim 0 over dp (S(0)), replicated over tp (R)`."""
    found = []
    for name, state in zip(names, Layout.parse(layout), strict=True):
        word = f"sharded on dim {state.dim}" if state.is_shard else STATES[state.kind]
        found.append(f"{word} over {name} ({state})")
    return ", ".join(found) or "whole"


def accumulated(plan: Plan) -> int:
    """Micro-batches that tell ZeRO-1 from ZeRO-2. In one they are the same, and it is called what was pinned."""
    return max(2, plan.microbatches) if "zero=1" in plan.pins else plan.microbatches


def _bytes_stored_alike(plan: Plan) -> Counter[ParameterPlan]:
    """Bytes of the weights that are stored and used alike."""
    found: Counter[ParameterPlan] = Counter()
    for name, entry in plan.parameters.items():
        found[entry] += plan.weight_bytes.get(name, 1)
    return found


def _recipe(plan: Plan, stage: Stage, weights: Counter[ParameterPlan]) -> Recipe:
    """weights: bytes of those stored alike. Of a plan of one stage all count; of a pipeline those whose layouts are on
    this stage's mesh cannot be told from the plan alone where meshes differ, so all that fit its axes."""
    degrees: Counter[str] = Counter()
    for axis in stage.mesh.axes:
        role = role_of(axis.name)
        degrees[role] = (degrees[role] or 1) * axis.size
    found: Counter[tuple[tuple[int, int, bool], int]] = Counter()
    for entry, size in weights.items():
        if len(Layout.parse(entry.storage)) == len(stage.mesh.axes):
            found[stored(entry, stage.mesh, accumulated(plan)), _data_ways(entry, stage.mesh)] += size
    whole = sum(found.values()) or 1
    storages = tuple(Storage(*stored, count / whole, ways) for (stored, ways), count in found.most_common())
    return Recipe(
        {role: size for role, size in degrees.items() if size > 1},
        storages,
        _sequence(plan, stage),
        bool(plan.weight_bytes),
    )


def headline(plan: Plan) -> str:
    """One line: how the model is parallelised, what saves memory."""
    weights = _bytes_stored_alike(plan)
    recipes = [_recipe(plan, stage, weights) for stage in plan.stages]
    inside = str(recipes[0]) if len(set(map(str, recipes))) == 1 else _of_unlike_stages(recipes)
    parts = [inside] if inside != "one device" or len(plan.groups) == 1 else []
    parts += _split_weights(plan)
    if len(plan.groups) > 1:
        virtual = len(plan.stages) // len(plan.groups)
        name = SCHEDULES.get(plan.schedule, plan.schedule)
        runs = f", {virtual} virtual stages each" if virtual > 1 else ""
        parts.insert(0, f"pipeline parallel over {len(plan.groups)} stages ({name}{runs})")
    parts += saving(plan)
    if plan.microbatches > 1:
        parts.append(batch_parts(plan))
    return " + ".join(parts)


def _split_weights(plan: Plan) -> list[str]:
    """Weights that data-parallel devices split in compute, as tensor parallel does (often those of the vocabulary):
    what tells such a plan from data parallel alone. Of plans of one stage."""
    if len(plan.stages) > 1 or not plan.weight_bytes:
        return []
    mesh, whole = plan.mesh, sum(plan.weight_bytes.values()) or 1
    if not any(axis.size > 1 and _is_data(axis.name) for axis in mesh.axes):
        return []
    own = [name for name, one in plan.parameters.items() if stored(one, mesh, plan.microbatches)[2]]
    if sum(plan.weight_bytes.get(name, 0) for name in own) < LEAST * whole:
        return []
    kinds = _kinds(own)
    shown = " and ".join(kinds) if len(kinds) <= NAMED else f"{', '.join(kinds[:NAMED])} and {len(kinds) - NAMED} more"
    return [f"tensor parallel {shown}"]


def _kinds(names: Iterable[str]) -> list[str]:
    """`layers.3.up.weight` -> `layers.*.up.weight`, each once."""
    return list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names))


def _of_unlike_stages(recipes: Sequence[Recipe]) -> str:
    """What stages do that do not do the same: degrees from the least to the most."""
    levels = {one.level for recipe in recipes for one in recipe.storages if one.level}
    parts = [SHARDED[level].split(" (g")[0].split(" (o")[0] for level in sorted(levels, reverse=True)]
    for role, word in ROLES.items():
        sizes = [recipe.degrees.get(role, 1) for recipe in recipes]
        few, many = min(sizes), max(sizes)
        if many > 1:
            over = f"over {many}" if few == many else f"over {few} to {many}" if few > 1 else f"over up to {many}"
            parts.append(f"{word} {over}")
    return f"{' + '.join(parts) or 'one device'} (stages differ)"


def batch_parts(plan: Plan) -> str:
    """How the batch is cut."""
    last = plan.batch - plan.microbatch * (plan.microbatches - 1)
    shorter = f", the last of {last}" if last < plan.microbatch else ""
    return f"{counted(plan.microbatches, 'micro-batch')} of {plan.microbatch}{shorter}"


def is_checkpointed(choice: Choice) -> bool:
    """Whether a layer recomputes values: statistics of norms alone take next to no time and save next to nothing."""
    return any("~" not in name for name in choice.recompute)


def saving(plan: Plan) -> list[str]:
    """What trades time for memory: checkpointing, offload, chunks."""
    choices = [plan.choice(index) for index in range(len(plan.segments))]
    found = []
    if count := sum(map(is_checkpointed, choices)):
        every = "every layer" if count == len(choices) else f"{count} of {len(choices)} layers"
        found.append(f"activation checkpointing in {every}")
    if count := sum(bool(choice.offload) for choice in choices):
        found.append(f"activation offload in {count} of {len(choices)} layers")
    found += _hosted(plan)
    if max((choice.chunks for choice in choices), default=1) > 1:
        found.append("chunked loss" if choices[-1].chunks > 1 else "chunked backward")
    if count := len(run_again(plan)):
        found.append(f"{NESTED} in {count} of {len(choices)} layers")
    return found


NESTED = "checkpoints within checkpoints"
"""Of layers that run forward more than once because what they are given is not kept either."""


def run_again(plan: Plan) -> Counter[str]:
    """How often each layer of a nested order runs forward besides the last time."""
    return Counter(step for step in plan.order if step.startswith("pass "))


def _hosted(plan: Plan) -> list[str]:
    """Optimizer state and weights that live in the host's memory."""
    entries, found = plan.parameters.values(), []
    for kind, word in (("optimizer", "optimizer offload"), ("weight", "weight and optimizer offload")):
        if count := sum(entry.offload == kind for entry in entries):
            found.append(f"{word} (CPU) of {'all' if count == len(entries) else f'{count} of {len(entries)}'} weights")
    return found


def alike_weights(plan: Plan) -> list[tuple[ParameterPlan, str]]:
    """Weights that are stored and used alike: `16 weights (layers.*.up.bias, 3 more)`; where all are: `36 weights`."""
    names: dict[ParameterPlan, list[str]] = {}
    for name, entry in plan.parameters.items():
        names.setdefault(entry, []).append(name)
    found = []
    for entry, own in sorted(names.items(), key=lambda item: -len(item[1])):
        kinds = _kinds(own)
        shown = [*kinds[:NAMED], *([f"{len(kinds) - NAMED} more"] if len(kinds) > NAMED else [])]
        which = f" ({', '.join(shown)})" if len(names) > 1 else ""
        found.append((entry, f"{counted(len(own), 'weight')}{which}"))
    return found


NAMED = 2
"""So many kinds of weights are named in a line."""


HOSTED = {
    "optimizer": "have their optimizer state on the host: it comes to the device, layer by layer, for the update",
    "weight": "live on the host with their gradients and optimizer state: a copy comes for each use",
}


def hosted_lines(plan: Plan) -> list[str]:
    """What of the parameters lives in the host's memory, and how much of that is taken, with activations there."""
    counts = Counter((entry.offload, entry.reshard_after_forward) for entry in plan.parameters.values())
    lines = []
    for (kind, again), count in sorted(counts.items()):
        words = HOSTED.get(kind, "")
        words = words if again or kind != "weight" else words.replace("for each use", "once a step")
        if kind:
            lines.append(f"  {count} of {len(plan.parameters)} weights {words}")
    size = plan.predicted.host_bytes
    return [*lines, f"  {show_bytes(size)} of the host's memory for each device"] if size else lines


def stored(entry: ParameterPlan, mesh: Mesh, microbatches: int) -> tuple[int, int, bool]:
    """(ZeRO level, devices that share the storage beyond what compute splits, whether compute splits over samples)."""
    storage, compute = Layout.parse(entry.storage), Layout.parse(entry.compute)
    ways = prod(
        axis.size
        for axis, kept, used in zip(mesh.axes, storage, compute, strict=True)
        if kept.is_shard and not used.is_shard
    )
    data = [used for axis, used in zip(mesh.axes, compute, strict=True) if axis.size > 1 and _is_data(axis.name)]
    split = any(used.is_shard for used in data)
    if ways == 1:
        return 0, 1, split
    if entry.reshard_after_forward:
        return 3, ways, split
    return (2 if entry.reduce_scatter_every_microbatch or microbatches == 1 else 1), ways, split


def _data_ways(entry: ParameterPlan, mesh: Mesh) -> int:
    """Over how many data-parallel devices what is stored of a weight is split."""
    storage = zip(mesh.axes, Layout.parse(entry.storage), strict=True)
    return prod(axis.size for axis, kept in storage if kept.is_shard and _is_data(axis.name))


def _is_data(axis_name: str) -> bool:
    return role_of(axis_name) in ("dp", "cp")


def _sequence(plan: Plan, stage: Stage) -> bool:
    """Whether a tensor-parallel axis shards what most layers hand on by the sequence: on the dim after the samples'."""
    tensor = [place for place, axis in enumerate(stage.mesh.axes) if role_of(axis.name) == "tp" and axis.size > 1]
    handed = [[Layout.parse(text) for text in plan.choice(index).outputs] for index in stage.segments[:-1]]
    split = [any(one[place].dim == 1 for one in layouts for place in tensor) for layouts in handed]
    return 2 * sum(split) > len(split)


class Tally(NamedTuple):
    """How often collectives run, their bytes in all, and their seconds where the axis is known."""

    times: int
    bytes: int
    seconds: float | None


def tally(traffic: Iterable[Collective | Traffic], mesh: Mesh | None = None) -> dict[tuple[str, str], Tally]:
    """By kind and axis, which is one of the mesh if that is given."""
    axes = {} if mesh is None else {axis.name: axis for axis in (*mesh.axes, *mesh.flat)}
    found: dict[tuple[str, str], Tally] = {}
    for one in traffic:
        times = one.count if isinstance(one, Traffic) else 1
        count, size, seconds = found.get((one.kind, one.axis), (0, 0, None))
        if one.axis in axes:
            seconds = (seconds or 0.0) + times * collective_s(one.kind, one.bytes, axes[one.axis])
        found[one.kind, one.axis] = Tally(count + times, size + times * one.bytes, seconds)
    return found
