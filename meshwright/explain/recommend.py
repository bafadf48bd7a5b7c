"""The answer in three lines: how the model is parallelised, how fast it is, how full the devices are."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from meshwright.cluster import Device
from meshwright.cost.host_link import is_assumed, state_copies
from meshwright.errors import counted
from meshwright.explain.accuracy import expected_error
from meshwright.explain.pace import pace
from meshwright.explain.words import headline
from meshwright.models.named import beyond_published
from meshwright.plan.plan import Plan
from meshwright.plan.units import show_bytes, show_limit, show_seconds

WIDE = 0.1
"""A gap of more says little of a plan."""
ROUNDING = 1e-6


def recommendation(plan: Plan, mfu: float | None = None) -> list[str]:
    """mfu: the share of the devices' peak."""
    found, limit = plan.predicted, limit_bytes(plan)
    share = found.peak_bytes / limit if limit else 0.0
    on_gpus = any(device.kind != "cpu" for device in _kinds(plan))
    half = "fp16: precision fp16" if _without_bfloat16(_kinds(plan)) else "bf16: precision mixed"
    whole = f" in fp32 ({half})" if on_gpus and plan.precision == "fp32" else ""
    used = "" if mfu is None else f", MFU {mfu:.0%}"
    return [
        f"{plan.model or 'the model'} on {devices(plan)}: {headline(plan)}",
        f"step {show_seconds(found.step_s)}{whole} of {work(plan)}, {rate(plan)}{used}; {bound_words(plan)} "
        f"({expected_error(plan)})",
        f"memory {show_bytes(found.peak_bytes)} of {show_limit(limit)} per device ({share:.0%}{_free(plan)})"
        f"{_hosted(plan)}",
        *(f"note: {note}" for note in notes(plan)),
    ]


def bound_words(plan: Plan) -> str:
    """How far the plan may be from the best."""
    best = "the best that its pins allow" if plan.pins else "the best possible"
    gap = plan.predicted.gap
    if plan.search_log.interrupted:
        return "the search was interrupted, a longer one may find a faster plan"
    why = ": what torch.compile fuses differs from plan to plan" if plan.compile else ""
    return f"within {gap:.1%} of {best}" if gap < 1 else f"no bound known{why}"


def notes(plan: Plan) -> list[str]:
    """What the answer is not to be read without: where it is of something else than was asked for."""
    found = [beyond_published(plan.model), emulated(_kinds(plan), plan.precision), _above(plan), _idle(plan)]
    found += [_link(plan), pace(plan)]
    return [note for note in (*found, plan.search_log.unproven, _wide_gap(plan)) if note]


def emulated(devices: Iterable[Device], precision: str) -> str:
    """Where products in bfloat16 gain nothing."""
    lacking = _without_bfloat16(devices)
    if precision not in ("bf16", "mixed") or not lacking:
        return ""
    half = any(one.peak_flops("float16") > one.peak_flops("bfloat16") for one in lacking)
    todo = "; --precision fp16 (in Python precision='fp16') is faster there" if half else ""
    names = " and ".join(one.name for one in lacking)
    return f"bfloat16 has no units of its own on {names}: products take as long as in float32{todo}"


def _without_bfloat16(devices: Iterable[Device]) -> list[Device]:
    """GPUs that multiply in bfloat16 at another dtype's rate."""
    return [one for one in dict.fromkeys(devices) if one.kind != "cpu" and not one.has_units("bfloat16")]


def _kinds(plan: Plan) -> list[Device]:
    return list(dict.fromkeys(stage.mesh.device for stage in plan.stages))


def _above(plan: Plan) -> str:
    """Where more memory was given than a device has."""
    given, have = plan.memory_bytes, min(stage.mesh.device.usable_bytes for stage in plan.stages)
    if given is None or given <= have:
        return ""
    free = f", {plan.headroom:.0%} of it left free as without a limit" if plan.headroom else ""
    return f"{show_bytes(given)} of memory were given; a device has {show_bytes(have)} to allocate{free}"


def _idle(plan: Plan) -> str:
    """Pins that say nothing on one device."""
    idle = [text for text in plan.pins if text in ("zero=1", "zero=2", "zero=3", "sp=on")]
    if plan.world_size > 1 or not idle:
        return ""
    return f"{' and '.join(idle)} changes nothing on one device: there is no other to shard over"


def _wide_gap(plan: Plan) -> str:
    """What a gap is to that says little."""
    if not WIDE < plan.predicted.gap < 1:
        return ""
    bound_s = plan.predicted.step_s * (1 - plan.predicted.gap)
    near = [event.node for event in plan.search_log if event.bound_s and event.bound_s <= bound_s * (1 + ROUNDING)]
    why = ""
    if any(node.startswith("pipelines") for node in near):
        why = " for pipelines, which counts only a part of what stages wait for each other"
    elif "offload=auto" in plan.pins and any(entry.offload for entry in plan.parameters.values()):
        why = " of a step that copies nothing to the host"
    return f"the gap is to a bound of {show_seconds(bound_s)}{why}; no plan that reaches it is known"


def _link(plan: Plan) -> str:
    """Where copies to the host are priced by a link that was not measured on such a device."""
    device = plan.stages[0].mesh.device
    copies = state_copies(device) if is_assumed(device) else None
    if copies is None or not any(entry.offload for entry in plan.parameters.values()):
        return ""
    rate = f"{copies.rate / 1e9:.0f} GB/s"
    return (
        f"copies to and from the host are priced at {rate}, assumed of its bus; `meshwright calibrate` measures yours"
    )


def _hosted(plan: Plan) -> str:
    size = plan.predicted.host_bytes
    return f" and {show_bytes(size)} of the host's memory{' for each' * (plan.world_size > 1)}" if size else ""


def _free(plan: Plan) -> str:
    return f"; headroom of {plan.headroom:.0%} left free" if plan.headroom else ""


def devices(plan: Plan) -> str:
    """`8 x H100-SXM-80GB`; of mixed stages each kind."""
    counts: dict[str, int] = {}
    for stage, *_ in plan.groups:
        counts[stage.mesh.device.name] = counts.get(stage.mesh.device.name, 0) + stage.mesh.world_size
    return " and ".join(f"{count} x {name}" for name, count in counts.items())


def rate(plan: Plan) -> str:
    if not plan.predicted.step_s:
        return "no work"
    unit = "tokens/s" if has_tokens(plan) else "samples/s"
    speed = tokens(plan) / plan.predicted.step_s
    return f"{speed:,.0f} {unit}" if speed >= 10 else f"{speed:.3g} {unit}"


def work(plan: Plan) -> str:
    """Of one step: `8 sequences of 8,192 tokens`, `32 samples`."""
    whole = _text(plan)
    if not whole:
        return counted(plan.batch, "sample")
    length = whole // plan.batch
    return f"{counted(plan.batch, 'sequence')} of {length:,} token{'s' * (length != 1)}"


def has_tokens(plan: Plan) -> bool:
    """Whether samples are texts."""
    return _text(plan) is not None


def tokens(plan: Plan) -> int:
    """Positions of all texts; samples where these are none."""
    return _text(plan) or plan.batch


def _text(plan: Plan) -> int | None:
    """Positions of the first whole-number input of two dims (token ids)."""
    for entry in plan.inputs.values():
        if entry.dtype in ("int64", "int32") and len(entry.shape) == 2:
            return prod(entry.shape)
    return None


def limit_bytes(plan: Plan) -> int:
    """Of the device that has least."""
    return min(stage.mesh.device.limit_bytes(plan.memory_bytes, plan.headroom) for stage in plan.stages)


def brief(plan: Plan) -> str:
    """`repr(plan)`: under 500 characters, whatever the model is called."""
    found = plan.predicted
    how = headline(plan)
    return (
        f"<Plan of {_short(plan.model or 'a model', 80)} on {_short(plan.cluster, 60)}: {_short(how, 200)}; "
        f"step {show_seconds(found.step_s)}, peak {show_bytes(found.peak_bytes)} per device>"
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
