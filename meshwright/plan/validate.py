"""What a plan's file may not say whatever its model is: figures of nothing, a cluster or pins that its mesh denies.

Plans that are made need not be asked: these fields come from a search, and disagree only where somebody edited them.
"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from meshwright.capture.optimizer import check_optimizer
from meshwright.cluster import load_cluster
from meshwright.errors import ClusterError, PlanError, counted
from meshwright.layout import Layout
from meshwright.pins.parts import AXES, pin_parts, pinned_mesh
from meshwright.pins.pins import pin_readings
from meshwright.pins.spelling import check_spelling
from meshwright.pins.stages import SCHEDULES, STAGED
from meshwright.plan.order import parse_order
from meshwright.plan.records import OFFLOADS
from meshwright.plan.tasks import check_tasks
from meshwright.rules.rule import TIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshwright.cluster import Cluster, Mesh
    from meshwright.plan.plan import Plan
    from meshwright.plan.records import Prediction, StagePrediction

MOST_BYTES = 1 << 63
"""No device holds as many, and no float is needed to print fewer."""
ROUNDING = 1e-9
"""Of a step: a difference of sums may be this much below zero."""

SHARES = ("gap", "bubble")

PRECISIONS = ("fp32", "bf16", "mixed", "fp16")

UNDO = "undo the edit, or plan again"


def check_fields(given: Any, read: Any, source: str, where: str = "") -> None:
    """Refuses what the file says and the plan read from it does not: a field that there is not. where: within it."""
    if given == read:
        return
    if isinstance(given, dict):
        for name, value in given.items():
            if name not in read:
                close = get_close_matches(name, read, n=1) or get_close_matches(name.lower(), read, n=1)
                expected = ", ".join(read) or "nothing there"
                todo = f"did you mean {where}{close[0]}?" if close else "take it out"
                raise PlanError(f"{source} has the field {where}{name}, which plans have not", expected, todo)
            check_fields(value, read[name], source, f"{where}{name}.")
    elif isinstance(given, list):
        for number, (value, other) in enumerate(zip(given, read, strict=True)):
            check_fields(value, other, source, f"{where.removesuffix('.')}[{number}].")


def check_loaded(plan: Plan) -> None:
    """Raises PlanError with the field."""
    _check_words(plan)
    _check_rules(plan)
    _check_routed(plan)
    _check_order(plan)
    _check_tasks(plan)
    _check_states(plan)
    _check_chunks(plan)
    _check_predicted(plan)
    _check_memory(plan)
    _check_cluster(plan)
    _check_pins(plan)


def _check_words(plan: Plan) -> None:
    if plan.precision not in PRECISIONS:
        raise PlanError(f"precision is {plan.precision!r}", f"one of {', '.join(PRECISIONS)}", UNDO)
    orders = ("one-stage",) if len(plan.stages) == 1 else SCHEDULES
    if plan.schedule not in orders:
        count = "1 stage" if len(plan.stages) == 1 else f"{len(plan.stages)} stages"
        raise PlanError(f"schedule is {plan.schedule!r} with {count}", " or ".join(orders), UNDO)
    check_optimizer(plan.optimizer)


def _check_rules(plan: Plan) -> None:
    if unknown := [name for name in plan.rules if name not in TIERS]:
        raise PlanError(f"rules names {', '.join(unknown)}", f"of {', '.join(TIERS)}", UNDO)


def _check_routed(plan: Plan) -> None:
    routed = list(plan.routed_via_stages)
    if routed and len(plan.stages) == 1:
        raise PlanError(f"routed_via_stages is {routed} with 1 stage", "none: values go to no other stage", UNDO)
    if any(not 0 <= segment < len(plan.segments) for segment in routed):
        raise PlanError(f"routed_via_stages is {routed}", f"layers from 0 to {len(plan.segments) - 1}", UNDO)


def _check_order(plan: Plan) -> None:
    if plan.order and len(plan.stages) > 1:
        raise PlanError(f"order has {len(plan.order)} steps with {len(plan.stages)} stages", "none", UNDO)
    if plan.order:
        parse_order(plan.order, len(plan.segments))


def _check_tasks(plan: Plan) -> None:
    if (plan.schedule == "searched") != bool(plan.tasks):
        expected = "a line for each stage" if plan.schedule == "searched" else "none: the schedule says the order"
        given = f"tasks has {counted(len(plan.tasks), 'line')} with schedule {plan.schedule!r}"
        raise PlanError(given, expected, UNDO)
    if plan.tasks:
        runs_of = [[plan.stages.index(stage) for stage in group] for group in plan.groups]
        check_tasks(plan.tasks, runs_of, plan.microbatches)


def _check_states(plan: Plan) -> None:
    """A weight is stored whole or split, and computed with so, or whole for different work."""
    for name, entry in plan.parameters.items():
        for where, text, kinds in (("storage", entry.storage, "SI"), ("compute", entry.compute, "SIR")):
            if any(state.kind not in kinds for state in Layout.parse(text)):
                allowed = ", ".join("S(dim)" if kind == "S" else kind for kind in kinds)
                raise PlanError(f"parameters.{name}.{where} is {text}", f"states {allowed}", UNDO)
        if entry.offload not in OFFLOADS:
            allowed = "an empty text, " + " or ".join(OFFLOADS[1:])
            raise PlanError(f"parameters.{name}.offload is {entry.offload!r}", allowed, UNDO)
        if entry.on_host and entry.reduce_scatter_every_microbatch:
            given = f"parameters.{name} is on the host, and its gradient is reduced after every micro-batch"
            raise PlanError(given, "gradients that go to the host once a step", UNDO)


def _check_chunks(plan: Plan) -> None:
    for index, choice in enumerate(plan.choices):
        if choice.chunks < 1 or plan.microbatch % choice.chunks:
            given = f"choices[{index}].chunks is {choice.chunks} with micro-batches of {plan.microbatch}"
            raise PlanError(given, f"a divisor of {plan.microbatch}", UNDO)


def _check_predicted(plan: Plan) -> None:
    """Seconds, bytes and shares are not negative; bytes can be those of a device; stages are the plan's."""
    least_s = -ROUNDING * abs(plan.predicted.step_s)
    parts: list[tuple[str, Prediction | StagePrediction]] = [("predicted", plan.predicted)]
    parts += [(f"predicted.stages[{number}]", stage) for number, stage in enumerate(plan.predicted.stages)]
    for where, part in parts:
        for entry in fields(part):
            value = getattr(part, entry.name)
            for one in value if isinstance(value, tuple) else (value,):
                least = 0 if isinstance(one, int) else least_s if entry.name.endswith("_s") else -ROUNDING
                if isinstance(one, int | float) and one < least:
                    raise PlanError(f"{where}.{entry.name} is {one}", "zero or more", UNDO)
                if entry.name in SHARES and isinstance(one, int | float) and one > 1 + ROUNDING:
                    raise PlanError(f"{where}.{entry.name} is {one}", "a share, from 0 to 1", UNDO)
                if isinstance(one, int) and one >= MOST_BYTES:
                    raise PlanError(f"{where}.{entry.name} has {len(str(one))} digits", f"less than {MOST_BYTES}", UNDO)
    for number, moved in enumerate(plan.predicted.collectives):
        if not 0 <= moved.bytes < MOST_BYTES:
            given = f"predicted.collectives[{number}].bytes has {len(str(moved.bytes))} digits"
            raise PlanError(given, f"zero or more, less than {MOST_BYTES}", UNDO)
    if plan.predicted.stages and len(plan.predicted.stages) != len(plan.groups):
        given = f"predicted.stages has {counted(len(plan.predicted.stages), 'stage')}"
        raise PlanError(given, f"one for each of {counted(len(plan.groups), 'stage')}", UNDO)


def _check_memory(plan: Plan) -> None:
    for name, size in plan.weight_bytes.items():
        if not 0 <= size < MOST_BYTES:
            given = f"weight_bytes.{name} is {size if abs(size) < MOST_BYTES else 'too large'}"
            raise PlanError(given, "bytes, zero or more", UNDO)
    if not 0 <= plan.per_host < MOST_BYTES:
        raise PlanError(f"per_host is {plan.per_host}", "a number of devices, or 0", UNDO)
    limit, peak = plan.memory_bytes, plan.predicted.peak_bytes
    if limit is not None and limit < max(1, peak):
        expected = f"at least predicted.peak_bytes, {peak}" if limit > 0 else "a size in bytes, or null for no limit"
        raise PlanError(f"memory_bytes is {limit}", expected, UNDO)
    if not 0 <= plan.headroom < 1 or (plan.headroom and limit is not None):
        raise PlanError(f"headroom is {plan.headroom}", "from 0 to less than 1, and 0 with a memory limit", UNDO)


def preset_named(name: str) -> Cluster | None:
    """The preset of this name, where it is one's; clusters of one's own are called anything."""
    if name.endswith(".toml"):
        return None
    try:
        return load_cluster(name)
    except ClusterError:
        return None


def _check_cluster(plan: Plan) -> None:
    preset = preset_named(plan.cluster)
    if preset is None:
        return
    kinds = set(preset.device_names())
    found = {stage.mesh.device.name for stage in plan.stages}
    if plan.world_size != preset.device_count or not found <= kinds:
        raise PlanError(
            f"cluster is {plan.cluster!r}, while stages[].mesh has {plan.world_size} x {' and '.join(sorted(found))}",
            f"the cluster that it was made for; {plan.cluster} has {preset.device_count} x {' and '.join(kinds)}",
            UNDO,
        )


def _check_pins(plan: Plan) -> None:
    """Each stage's mesh has the axes that pins speak of, and there are as many stages as they say."""
    try:
        check_spelling(plan.pins)
        shape = pinned_mesh(plan.pins)
        elsewhere = (*STAGED, "recompute", "offload")
        rest = [text for text in plan.pins if pin_parts(text)[0] not in elsewhere]
        for number, stage in enumerate(plan.stages if rest else ()):
            _check_axes(rest, shape, stage.mesh, number)
            pin_readings(rest, stage.mesh)
        _check_stages(plan)
    except PlanError as error:
        raise PlanError(f"pins: {error.given}", error.expected, UNDO) from error


def _check_axes(pins: Sequence[str], shape: tuple[int, ...] | None, mesh: Mesh, number: int) -> None:
    """The mesh of a stage has the axes that pins speak of."""
    own = " x ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    expected = f"pins that agree with stages[{number}].mesh, which is {own}"
    if shape is not None and mesh.sizes != shape:
        raise PlanError(f"pin mesh={'x'.join(map(str, shape))}", expected)
    axes = [text for text in pins if pin_parts(text)[0] in AXES]
    try:
        pin_readings(axes, mesh)
    except PlanError as error:
        raise PlanError(f"pin{'s' if len(axes) > 1 else ''} {' and '.join(axes)}", expected) from error


def _check_stages(plan: Plan) -> None:
    sizes = [group[0].mesh.world_size for group in plan.groups]
    for key, value in map(pin_parts, plan.pins):
        runs = {len(group) for group in plan.groups}
        if key == "vpp" and runs != {int(value)}:
            raise PlanError(f"pin vpp={value}", f"the plan's own runs of layers in a stage, {sorted(runs)}")
        layers = "+".join(str(stage.end - stage.first) for stage in plan.stages)
        if key == "layers" and value != layers:
            raise PlanError(f"pin layers={value}", f"the plan's own layers of each stage, {layers}")
        if key != "pp":
            continue
        parts = value.split("+")
        own = map(str, sizes if len(parts) > 1 else [len(sizes)])
        if sorted(parts) != sorted(own):
            raise PlanError(f"pin pp={value}", f"the plan's own {len(sizes)} stages of {sizes} devices")
