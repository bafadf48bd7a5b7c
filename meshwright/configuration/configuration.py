"""Configuration: how a transformer is spread over devices, as people write it down by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from meshwright.configuration.transformer import Transformer
from meshwright.errors import PlanError
from meshwright.pins.parts import pin_parts
from meshwright.schedule import ORDERS

PRECISIONS = ("fp32", "tf32", "mixed", "fp16", "fp8", "fp8-rows")
RECOMPUTE = ("none", "selective", "ops", "full")
ATTENTION = ("flash", "flash2", "triton", "unfused")
CONTEXT = ("ring", "all_gather", "all_to_all", "pieces")
LOSS = ("float32", "steps", "half", "eager")


@dataclass(frozen=True, slots=True)
class Configuration:
    """How a transformer is trained, given whole. Sizes of the axes: data, tensor, pipeline, context and expert
    parallelism (`ep` is carved out of dp and cp); `vpp` runs of layers on each pipeline stage.

    zero: 0 to 3.
    sp: sequence parallelism with tp.
    recompute: nothing, the core of attention (`selective`), all but attention and every second product (`ops`), whole
        layers (`full`).
    precision: `mixed` computes in bfloat16 and stores float32; `fp16` likewise in float16; `fp8` runs linear layers in
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
    context: how attention sees the whole sequence under cp; `pieces` as PyTorch does, one rank's keys after the other.
    stage_layers: layers of each stage, in order.
    recomputed: how many layers of each stage are recomputed where not all are.
    offload: the share of the optimizer that lives on the host, by stage.
    scatter: ZeRO-1 reduces gradients to shards; else all of them are reduced everywhere.
    half_gradients: backward makes gradients in the compute dtype, all of which are there before they are added to those
        that are held.
    recorded: whole operands of tensor parallelism's collectives are freed only when the device has run these, so that
        they pile up while the host runs ahead (`reserved.waiting_bytes`).
    in_turn: stages hand over as in DeepSpeed: a stage gives a gradient back, only then is sent the next hidden states,
        and waits for both; ranks of tp send a part each, which the receivers gather.
    clipped: before the optimizer gradients are scaled in their whole buffer and clipped by their norm, after it the
        buffer is zeroed.
    skew: exponent of the power law that loads of experts follow, of which no row is dropped; 0 where they are equal.
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

    def verify(self, model: Transformer, devices: int) -> None:
        """Raises PlanError where the axes do not multiply to the devices, or sizes do not divide."""
        for name in ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name}={getattr(self, name)}", "1 or more", "correct the pin")
        words = f"dp={self.dp} tp={self.tp} pp={self.pp} cp={self.cp}"
        if self.devices != devices:
            raise PlanError(f"{words}: {self.devices} devices", f"the cluster's {devices}", "change the pins")
        if self.global_batch % (self.dp * self.micro_batch):
            raise PlanError(
                f"a batch of {self.global_batch} on dp={self.dp} with {self.micro_batch} samples at a time",
                f"a multiple of {self.dp * self.micro_batch}",
                "change the batch or the pins",
            )
        if self.dp * self.cp % self.ep or model.experts % self.ep:
            raise PlanError(f"ep={self.ep}", f"a divisor of dp*cp and of {model.experts} experts", "change the pin")
        if self.pp * self.vpp > model.layers + 2:
            raise PlanError(
                f"pp={self.pp} vpp={self.vpp} for {model.layers} layers",
                "a layer for each, or the embedding or head",
                "use fewer",
            )
        if model.seq % self.cp or model.heads % self.tp:
            raise PlanError(
                f"cp={self.cp} tp={self.tp} for a sequence of {model.seq} and {model.heads} heads",
                "divisors of both",
                "change the pins",
            )
        for name, most in _RANGES.items():
            if not 0 <= getattr(self, name) <= most:
                raise PlanError(f"{name}={getattr(self, name):g}", f"0 to {most:g}", "correct the pin")
        for name, words_ in _WORDS.items():
            if getattr(self, name) not in words_:
                raise PlanError(f"{name}={getattr(self, name)}", f"one of {', '.join(words_)}", "correct the pin")
        if self.stage_layers and (len(self.stage_layers) != self.pp or sum(self.stage_layers) != model.layers):
            raise PlanError(
                f"stage_layers={'+'.join(map(str, self.stage_layers))}",
                f"{self.pp} numbers whose sum is {model.layers}",
                "correct the pin",
            )
        if self.zero not in range(4):
            raise PlanError(f"zero={self.zero}", "0 to 3", "correct the pin")


_WORDS = {
    "precision": PRECISIONS,
    "recompute": RECOMPUTE,
    "attention": ATTENTION,
    "context": CONTEXT,
    "loss": LOSS,
    "schedule": tuple(ORDERS),
}
_RANGES = {"overlap": 1.0, "tp_overlap": 1.0, "tp_pipelined": 1.0, "skew": 10.0}
_OF_AXES = {"vpp": "pp", "schedule": "pp", "sp": "tp", "tp_overlap": "tp", "tp_pipelined": "tp", "context": "cp"}
_SPELLINGS = {"batch": "global_batch"}
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
        if key not in _TYPES:
            raise PlanError(f"pin {text!r}", f"one of {', '.join(_TYPES)}", "correct the pin")
        if given.setdefault(key, value) != value:
            raise PlanError(f"pins {key}={given[key]} and {text}", f"one value for {key}", "drop one of them")
        found = replace(found, **{key: _value(text, key, value)})
    for name, axis in _OF_AXES.items():
        if name in given and getattr(found, name) != getattr(Configuration(), name) and getattr(found, axis) == 1:
            raise PlanError(f"pins {axis}=1 and {name}={given[name]}", f"{name} where {axis} is 2 or more", "drop one")
    rest = found.tp * found.pp * found.cp
    if "dp" not in given and rest > 0:
        found = replace(found, dp=max(1, devices // rest))
    if global_batch is not None or "global_batch" not in given:
        each = found.dp * found.micro_batch  # as `plan`: a sample for each device, unless so many are not dealt evenly
        even = devices if devices % each == 0 else each
        found = replace(found, global_batch=even if global_batch is None else global_batch)
    if found.vpp > 1 and "schedule" not in given:
        found = replace(found, schedule="interleaved")
    return found


def _as_here(key: str, value: str) -> str:
    """A value as a row of `plan`'s table spells it: `recompute=keep`, `pp=4+4` of equal stages."""
    if key == "recompute" and value == "keep":
        return "none"
    sizes = value.split("+")
    return str(len(sizes)) if key == "pp" and len(sizes) > 1 and len(set(sizes)) == 1 else value


def _value(text: str, key: str, value: str) -> Any:
    kind = _TYPES[key]
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        if kind == "bool":
            return {"on": True, "off": False, "true": True, "false": False}[value.lower()]
        if kind.startswith("tuple[int"):
            return tuple(int(one) for one in value.split("+"))
        if kind.startswith("tuple[float"):
            return tuple(float(one) for one in value.split("+"))
    except (ValueError, KeyError):
        raise PlanError(f"pin {text!r}", f"a value for {key}, such as {_EXAMPLES[kind]}", "correct the pin") from None
    return value


_EXAMPLES = {
    "int": "8",
    "float": "0.5",
    "bool": "on or off",
    "tuple[int, ...]": "13+11",
    "tuple[float, ...]": "0.5+0",
}
