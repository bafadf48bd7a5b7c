"""Configuration: how a transformer is spread over devices, as people write it down by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from meshwright.configuration.transformer import Transformer
from meshwright.errors import PlanError
from meshwright.models.family import BATCH
from meshwright.pins.of_price import PINS
from meshwright.pins.parts import pin_parts
from meshwright.pins.stages import check_runs
from meshwright.schedule import ORDERS

PRECISIONS = ("fp32", "tf32", "mixed", "bf16", "fp16", "fp8", "fp8-rows")
RECOMPUTE = ("none", "selective", "ops", "full")
ATTENTION = ("flash", "flash2", "triton", "unfused")
CONTEXT = ("ring", "all_gather", "all_to_all", "pieces")
LOSS = ("float32", "steps", "half", "eager")
DTYPES = ("float32", "bfloat16", "float16")
MOST = 10**9
"""No size that a machine could have is larger."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """How a transformer is trained, given whole. Sizes of the axes: data, tensor, pipeline, context and expert
    parallelism (`ep` is carved out of dp and cp); `vpp` runs of layers on each pipeline stage.

    zero: 0 to 3.
    sp: sequence parallelism with tp.
    recompute: nothing, the core of attention (`selective`), all but attention and every second product (`ops`), whole
        layers (`full`).
    precision: `mixed` computes in bfloat16 and stores float32; `bf16` stores and updates bfloat16 too; `fp16` is like
        `mixed` in float16; `fp8` runs linear layers in
        float8 with one scale a tensor, `fp8-rows` with one a row, found while it runs.
    attention: `flash` is what was measured of the device, `flash2` FlashAttention-2, `triton` its predecessor in
        Triton.
    reduce: dtype of the gradients' reduction.
    loss: dtype of the logits in the loss, or `half`; `steps` where each step of a float32 loss is a kernel, `eager`
        where it is PyTorch's own, uncompiled.
    gathers: how often ZeRO-3 gathers a layer for each micro-batch, 3 where recomputation does so by itself (DeepSpeed).
    listed: how many tensors of a layer ZeRO-3 gathers and reduces one by one, in a list with a part for each rank.
    overlap: which share of gathers and reductions overlaps compute.
    tp_overlap: which share of backward's collectives of tp overlaps weights' gradients.
    tp_pipelined: which share of all collectives of tp overlaps the products they belong to.
    contention: compute slows while gathers and reductions run (`cluster.contention`).
    gradients: dtype in which they are held until the step.
    fused: chains of elementwise ops are single kernels.
    separate: queries, keys and values, and the two products of a gated MLP, are products of their own.
    repeats: keys and values are repeated for all heads of queries before attention.
    context: how attention sees the whole sequence under cp. A `ring` exchanges blocks of keys and values while it
        attends, `all_gather` gathers them before; `pieces` as PyTorch does, one rank's keys after the other.
    stage_layers: layers of each stage, in order.
    recomputed: how many layers of each stage are recomputed where not all are.
    offload: the share of the optimizer that lives on the host, by stage; offload_overlap: which share of its copies
        overlaps compute.
    scatter: ZeRO-1 reduces gradients to shards; else all of them are reduced everywhere.
    half_gradients: backward makes gradients in the compute dtype, all of which are there before they are added to those
        that are held.
    recorded: whole operands of tensor parallelism's collectives are freed only when the device has run these, so that
        they pile up while the host runs ahead (`reserved.waiting_bytes`).
    in_turn: stages hand over as in DeepSpeed: a stage gives a gradient back, only then is sent the next hidden states,
        and waits for both; ranks of tp send a part each, which the receivers gather.
    clipped: before the optimizer gradients are scaled in their whole buffer and clipped by their norm, after it the
        buffer is zeroed.
    skew: exponent of the power law that loads of experts follow, of which no row is dropped. 0 stands for equal loads
        and is not the law's limit: near 0 the busiest expert has about twice the mean.
    casts: kernels of their own cast to float8, which compiled code does in others.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    zero: int = 0
    sp: bool = False
    micro_batch: int = 1
    global_batch: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    precision: str = "mixed"
    attention: str = "flash"
    reduce: str = "float32"
    loss: str = "float32"
    gathers: int = 2
    listed: int = 0
    overlap: float = 1.0
    tp_overlap: float = 0.0
    tp_pipelined: float = 0.0
    contention: bool = True
    gradients: str = "float32"
    fused: bool = True
    separate: bool = False
    repeats: bool = False
    context: str = "ring"
    stage_layers: tuple[int, ...] = ()
    recomputed: tuple[int, ...] = ()
    offload: tuple[float, ...] = ()
    offload_overlap: float = 0.0
    scatter: bool = True
    half_gradients: bool = False
    recorded: bool = False
    in_turn: bool = False
    clipped: bool = False
    skew: float = 0.0
    casts: bool = True

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def microbatches(self) -> int:
        return max(1, self.global_batch // (self.dp * self.micro_batch))

    @property
    def dtype(self) -> str:
        return {"fp32": "float32", "tf32": "float32", "fp16": "float16"}.get(self.precision, "bfloat16")

    @property
    def stored(self) -> str:
        """The dtype in which weights are updated, and of the optimizer's states."""
        return "bfloat16" if self.precision == "bf16" else "float32"

    def verify(self, model: Transformer, devices: int) -> None:
        """Raises PlanError where the axes do not multiply to the devices, or sizes do not divide."""
        self.check_values()
        words = f"dp={self.dp} tp={self.tp} pp={self.pp} cp={self.cp}"
        if self.devices != devices:
            wrong = [name for name in ("dp", "tp", "pp", "cp") if devices % getattr(self, name)]
            todo = f"change {' and '.join(wrong) or 'the pins'}"
            raise PlanError(f"{words}: {self.devices} devices", f"the cluster's {devices}", todo)
        if self.global_batch % (self.dp * self.micro_batch):
            raise PlanError(
                f"a batch of {self.global_batch} on dp={self.dp} with {self.micro_batch} samples at a time",
                f"a multiple of {self.dp * self.micro_batch}",
                "change the batch or the pins",
            )
        if model.experts < 2 <= self.ep:
            raise PlanError(f"ep={self.ep} of a model without experts", "a mixture of experts", "drop the pin")
        if self.dp * self.cp % self.ep or model.experts % self.ep:
            here = f"dp={self.dp} cp={self.cp} and {model.experts} experts"
            expected = f"a divisor of dp*cp, here {self.dp * self.cp}, and of {model.experts} experts"
            raise PlanError(f"ep={self.ep} with {here}", expected, "change the pins")
        if self.pp * self.vpp > model.layers + 2:
            raise PlanError(
                f"pp={self.pp} vpp={self.vpp} for {model.layers} layers",
                "a layer for each, or the embedding or head",
                "use fewer",
            )
        for name, size, what in (("cp", model.seq, "positions of a sequence"), ("tp", model.heads, "heads")):
            if size % getattr(self, name):
                given = f"{name}={getattr(self, name)} for {size} {what}"
                raise PlanError(given, f"a divisor of {size}", f"change {name}")
        self._check_stages(model)

    def check_values(self) -> None:
        """Raises PlanError where a value is none of its field, whatever the model and the devices."""
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            for one in value if isinstance(value, tuple) else (value,):
                if not least <= one <= most:
                    expected = f"{least} or more" if one < least and most == MOST else f"{least} to {most:,}"
                    raise PlanError(f"{name}={shown(value)}", expected, "correct the pin")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise PlanError(f"{name}={getattr(self, name)}", f"one of {', '.join(words)}", "correct the pin")

    def _check_stages(self, model: Transformer) -> None:
        """What is given by stage is given of each."""
        for name, what in _BY_STAGE.items():
            value = getattr(self, name)
            if value and len(value) != self.pp:
                numbers = f"{self.pp} numbers" if self.pp > 1 else "1 number"
                raise PlanError(
                    f"{name}={shown(value)} with pp={self.pp}", f"{numbers}, {what} of each stage", "correct the pin"
                )
        if self.stage_layers and sum(self.stage_layers) != model.layers:
            raise PlanError(
                f"stage_layers={shown(self.stage_layers)}", f"numbers whose sum is {model.layers}", "correct the pin"
            )
        if max(self.recomputed, default=0) > model.layers:
            given = f"recomputed={shown(self.recomputed)}"
            raise PlanError(given, f"no more than the model's {model.layers} layers", "correct the pin")


_WORDS = {
    "precision": PRECISIONS,
    "recompute": RECOMPUTE,
    "attention": ATTENTION,
    "context": CONTEXT,
    "loss": LOSS,
    "schedule": tuple(ORDERS),
    "reduce": DTYPES,
    "gradients": DTYPES,
}
_RANGES = {
    **dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch"), (1, MOST)),
    **dict.fromkeys(("overlap", "tp_overlap", "tp_pipelined", "offload", "offload_overlap"), (0, 1)),
    **dict.fromkeys(("stage_layers", "recomputed", "listed"), (0, MOST)),
    "zero": (0, 3),
    "gathers": (1, 4),
    "skew": (0, 10),
}
"""The least and the most that a field may be, each value of those that are given by stage."""
_BY_STAGE = {"stage_layers": "the layers", "recomputed": "the recomputed layers", "offload": "the optimizer's share"}
_OF_AXES = {
    **dict.fromkeys(("vpp", "schedule", "stage_layers", "recomputed", "in_turn"), "pp"),
    **dict.fromkeys(("sp", "tp_overlap", "tp_pipelined"), "tp"),
    "context": "cp",
}
"""What says something only where an axis is 2 or more."""
_SPELLINGS = {"batch": "global_batch", "layers": "stage_layers"}
"""Words of `meshwright plan` for the same."""
_TYPES = {one.name: str(one.type) for one in fields(Configuration)}


def configured(pins: Iterable[str], devices: int, global_batch: int | None = None) -> Configuration:
    """Pins such as `tp=8`, `zero=3`, `recompute=full`; dp, where it is not pinned, takes the devices that are left."""
    found, given = Configuration(), dict[str, str]()
    for text in pins:
        if not isinstance(text, str):
            raise PlanError(f"pin {text!r} is no text", "`name=value`, such as tp=8", "correct the pin")
        key, value = pin_parts(text)
        key = _SPELLINGS.get(key, key)
        if key in ("microbatch", "microbatches"):
            raise PlanError(
                f"pin {text!r}, which in `meshwright plan` is the number of micro-batches",
                "micro_batch=SIZE, the samples of one on each data-parallel rank",
                "give the size",
            )
        value = _as_here(key, value)
        if key not in PINS:
            raise PlanError(f"pin {text!r}", f"one of {', '.join(PINS)}", _meant(key))
        if given.setdefault(key, value) != value:
            raise PlanError(f"pins {key}={given[key]} and {text}", f"one value for {key}", "drop one of them")
        found = replace(found, **{key: _value(text, key, value)})
    if global_batch is not None:
        if isinstance(global_batch, bool) or not isinstance(global_batch, int):
            raise PlanError(f"global_batch={global_batch!r}", "a whole number of sequences", "correct it")
        if given.get("global_batch", str(global_batch)) != str(global_batch):
            both = f"a global batch of {global_batch} and the pin global_batch={given['global_batch']}"
            raise PlanError(both, "one of them", "drop the pin")
        found = replace(found, global_batch=global_batch)
    if found.precision == "bf16":  # gradients are of the dtype of their weights
        own = {"gradients": found.stored, "reduce": found.stored} | given
        found = replace(found, gradients=own["gradients"], reduce=own["reduce"])
    found.check_values()
    _check_effect(found, given)
    if "dp" not in given:
        found = replace(found, dp=max(1, devices // (found.tp * found.pp * found.cp)))
    if global_batch is None and "global_batch" not in given:
        each = found.dp * found.micro_batch
        found = replace(found, global_batch=-(-BATCH // each) * each)  # as of `plan`, or what can be dealt evenly
    if found.vpp > 1 and "schedule" not in given:
        found = replace(found, schedule="interleaved")
    check_runs(found.vpp, found.schedule)
    return found


def _check_effect(found: Configuration, given: Mapping[str, str]) -> None:
    """Refuses pins that would say nothing."""
    for name, axis in _OF_AXES.items():
        if name in given and getattr(found, name) != getattr(Configuration(), name) and getattr(found, axis) == 1:
            raise PlanError(f"pins {axis}=1 and {name}={given[name]}", f"{name} where {axis} is 2 or more", "drop one")
    if found.stage_layers and found.vpp > 1:
        raise PlanError(
            f"pins vpp={found.vpp} and stage_layers={given['stage_layers']}", "stage_layers with vpp=1", "drop one"
        )
    fp8 = found.precision.startswith("fp8")
    reasons = {
        **dict.fromkeys(("gathers", "listed"), ("zero", "zero=3", found.zero == 3)),
        **dict.fromkeys(("gradients", "half_gradients"), ("zero", "zero=0 or zero=1", found.zero < 2)),
        "scatter": ("zero", "zero=1", found.zero == 1),
        "casts": ("precision", "precision=fp8 or precision=fp8-rows", fp8),
        "offload_overlap": ("offload", "offload above 0", any(found.offload)),
    }
    for name, (other, where, has) in reasons.items():
        if name in given and not has and getattr(found, name) != getattr(Configuration(), name):
            have = f"{other}={shown(getattr(found, other))}" if getattr(found, other) != () else f"no {other}"
            raise PlanError(f"pin {name}={given[name]} with {have}", where, "drop or change one")


def described(given: Configuration, pins: Iterable[str]) -> str:
    """Besides its axes: what is pinned, what differs from what is taken unless given, and words that change a step."""
    pinned = {_SPELLINGS.get(key, key) for key, _ in map(pin_parts, pins)}
    words = {"recompute", "precision", "attention"}
    words |= {name for name in ("sp", "context", "schedule") if getattr(given, _OF_AXES[name]) > 1}
    usual, axes = Configuration(), {"dp", "tp", "pp", "cp", "ep", "vpp", "zero", "micro_batch", "global_batch"}
    said = [name for name in PINS if name in words | pinned or getattr(given, name) != getattr(usual, name)]
    return " ".join(f"{name}={shown(getattr(given, name))}" for name in said if name not in axes)


def dealt(given: Configuration, run_layers: Sequence[int]) -> str:
    """How many layers each stage has, or each run of them where they are interleaved, and who said so."""
    counts = "+".join(map(str, run_layers))
    if given.vpp > 1:
        return f"{counts}, dealt evenly in runs that go round {given.pp} stages"
    if given.stage_layers:
        return f"{counts}, as pinned"
    more = "" if given.pp == 2 else "+..."
    return f"{counts}, dealt evenly, where `plan` weighs them with the embedding and the head; --pin layers=N+N{more}"


def gives_batch(pins: Iterable[str]) -> bool:
    """Whether one of the pins is the batch."""
    return any(_SPELLINGS.get(key, key) == "global_batch" for key, _ in map(pin_parts, pins))


def _as_here(key: str, value: str) -> str:
    """A value as a row of `plan`'s table spells it: `recompute=keep`, `pp=4+4` of equal stages."""
    if key == "recompute" and value == "keep":
        return "none"
    sizes = value.split("+")
    return str(len(sizes)) if key == "pp" and len(sizes) > 1 and len(set(sizes)) == 1 else value


def _meant(key: str) -> str:
    close = get_close_matches(key, PINS, n=2)
    meant = f"did you mean {' or '.join(PINS[name][0] for name in close)}? " if close else ""
    return f"{meant}`meshwright price --help` explains each"


def _value(text: str, key: str, value: str) -> Any:
    if key == "offload" and value.partition(":")[0] in ("optimizer", "weights", "auto"):
        raise PlanError(
            f"pin {text!r}, as `meshwright plan` has it",
            "the share of the optimizer that lives on the host, of each stage",
            "write offload=0.5 for one half, offload=0.5+0 with pp=2",
        )
    kind = _TYPES[key]
    try:
        if kind.startswith("tuple"):
            return tuple(_NUMBERS[kind[6:].partition(",")[0]](one) for one in value.split("+"))
        return _NUMBERS[kind](value) if kind in _NUMBERS else value
    except (ValueError, KeyError):
        raise PlanError(f"pin {text!r}", f"a value for {key}, such as {PINS[key][0]}", "correct the pin") from None


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


def _fraction(text: str) -> float:
    if not re.fullmatch(r"-?[0-9]*[.]?[0-9]+(e-?[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


def _switch(text: str) -> bool:
    return {"on": True, "off": False, "true": True, "false": False}[text.lower()]


_NUMBERS: dict[str, Callable[[str], Any]] = {"int": _whole, "float": _fraction, "bool": _switch}


def shown(value: object) -> str:
    """As a pin is written."""
    if isinstance(value, tuple):
        return "+".join(map(shown, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
