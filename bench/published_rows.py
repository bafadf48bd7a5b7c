"""A row of a table of published training runs becomes a Transformer, a Configuration, a Cluster and a Framework."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import gpu_names
from published_frameworks import Habits, habits_of
from row_tables import SHOWN, WRONG, Refused, Row, positive_number, whole_number

from meshwright.cluster import Cluster
from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.hosts import ALIASES, HOSTS, NETWORK_STEP_S
from meshwright.cluster.presets import NCCL_OVERHEAD_S, devices_of
from meshwright.cluster.tree import Group, Link, Member, merge_equal
from meshwright.configuration import Configuration, Transformer
from meshwright.configuration.transformer import LatentAttention
from meshwright.errors import MeshwrightError
from meshwright.schedule import ORDERS

Reached = tuple[float, float, float, float] | None
NEEDED = ("layers", "hidden", "heads", "vocab", "seq", "gpu", "num_gpus", "global_batch")
FIGURES = ("step_time_s", "peak_mem_GB", "mfu", "inter_node_GBps_per_gpu")
"""What a row may leave out, but not have wrong."""
SIZES = ("num_gpus", "gpus_per_node", "tp", "pp", "dp", "cp", "ep", "vpp")
PRECISIONS = {
    **dict.fromkeys(("bf16", "bfloat16", "mixed", "bf16_mixed", "amp_bf16"), "mixed"),
    **dict.fromkeys(("fp16", "float16", "half", "fp16_mixed", "amp_fp16"), "fp16"),
    **dict.fromkeys(("fp8", "float8", "fp8_e4m3", "fp8_hybrid", "fp8_tensorwise", "amp_fp8", "fp8_cs"), "fp8"),
    **dict.fromkeys(("fp8_delayed", "bf16_fp8", "fp8_mixed"), "fp8"),
    **dict.fromkeys(("mxfp8", "fp8_mx"), "fp8"),
    **dict.fromkeys(("fp8_rowwise", "float8_rowwise", "fp8_blockwise", "fp8_subchannel"), "fp8-rows"),
    **dict.fromkeys(("fp32", "float32"), "fp32"),
    "tf32": "tf32",
}
FLAGS = {**dict.fromkeys(("true", "1", "yes"), "true"), **dict.fromkeys(("false", "0", "no"), "false")}
STATUSES = {"ok": "ok", "oom": "oom", **dict.fromkeys(("crash", "error", "failed", "timeout"), "crash")}
FAMILIES = {
    **dict.fromkeys(("gpt_oss", "llama", "mistral", "qwen", "gemma", "yi", "internlm", "baichuan", "moe"), "llama"),
    **dict.fromkeys(("mixtral", "deepseek", "grok"), "llama"),
    **dict.fromkeys(("gpt", "opt", "bloom", "pythia", "phi"), "gpt"),
    **dict.fromkeys(("mpt", "falcon", "dbrx", "olmo", "nemotron"), "mpt"),
}
"""How a family's name begins, and what its blocks are like: norms, positions, biases."""
ATTENTION = {
    **dict.fromkeys(("flash", "fa2", "fa3", "fused", "sdpa", "triton", "cudnn", "xformers", "mem_efficient"), "flash"),
    **dict.fromkeys(("unfused", "eager", "math"), "unfused"),
}
"""By how the name begins too."""
SCHEDULES = {
    **{name.replace("-", "_"): name for name in ORDERS},
    **dict.fromkeys(("none", "interleaved", "interleaved_1f1b", "interleaved1f1b", "1f1b_interleaved"), "1f1b"),
    "zb_h1": "zero-bubble",
    "afab": "gpipe",
}
"""What is interleaved is told by `vpp`."""
RECOMPUTE = {
    **{name: name for name in ("none", "full", "selective", "partial", "ops")},
    **dict.fromkeys(("no", "false"), "none"),
    **dict.fromkeys(("true", "yes", "uniform", "block", "layer"), "full"),
    **dict.fromkeys(("attention", "core_attn"), "selective"),
    **dict.fromkeys(("op", "per_op", "selective_op"), "ops"),
}
CONTEXT = {
    **dict.fromkeys(("ring", "p2p"), "ring"),
    **dict.fromkeys(("all_gather", "allgather"), "all_gather"),
    **dict.fromkeys(("all_to_all", "alltoall", "a2a", "ulysses"), "all_to_all"),
}
LARGEST = {"layers": 10_000, "pp": 10_000, "vpp": 10_000, "num_gpus": 1_000_000}
"""What a column may hold at most, where that is less than ten million."""
UNFORESEEN = (ArithmeticError, ValueError, LookupError, TypeError, AssertionError, MemoryError)
"""What a row that nobody has seen may raise; it becomes the reason."""
NOMINAL_MHZ = {"L4": 2040.0}
"""Boost clocks behind the nominal peaks (NVIDIA's data sheet), for rows whose clocks were locked lower."""
UPLINKS = {"RTX-3090": 0.115e9, "RTX-2080-Ti": 2.858e9, "Titan-RTX": 2.858e9}
"""Bytes per second between Sailor's hosts of different GPUs (eth-easl/sailor@cf2c8e3, multizone_bandwidths_het)."""


LOCKED = {"matmul": 0.88, "attention": 0.67}
"""Of the peak at a locked clock, which power does not lower: products 55 of 62 TFLOP/s on an L4, FlashAttention-2
forward 42 (Mist d69e530, single ops)."""


class ImpossibleError(Exception):
    """Why a row's configuration can not be run at all."""


def reason(error: MeshwrightError) -> str:
    """What was given and what was expected."""
    return f"{error.given}; expected {error.expected}" if error.expected else error.given


@dataclass(frozen=True)
class Case:
    """A row that can be priced. refused: why its framework would not run it, if so."""

    model: Transformer
    given: Configuration
    cluster: Cluster
    habits: Habits
    refused: str = ""


def case_of(row: Row) -> Case:
    """Raises Refused with the reason."""
    if WRONG in row:
        raise Refused(row[WRONG])
    missing = [name for name in NEEDED if not row.get(name)]
    if missing:
        raise Refused(f"no value in {', '.join(missing)}")
    for name in FIGURES:
        if row.get(name):
            positive_number(name, row[name])
    for name in SIZES:
        number(row, name)
    row["status"] = _word(row, "status", STATUSES)
    try:
        habits = habits_of(row)
        model = _model(row, habits)
        given = _configuration(row, model, habits)
        return Case(model, given, _cluster(row, habits), habits, _refused(model, given) if habits.dealt else "")
    except MeshwrightError as error:
        raise Refused(reason(error)) from error
    except UNFORESEEN as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def number(row: Row, name: str, default: int = 1) -> int:
    text = row.get(name) or ""
    return whole_number(name, text, min(1, default), LARGEST.get(name, 10**7)) if text else default


def _flag(row: Row, name: str) -> bool:
    return _word(row, name, FLAGS) == "true"


def _word(row: Row, name: str, words: dict[str, str]) -> str:
    """What a cell says, in one spelling; nothing where it is empty."""
    text = re.sub(r"[\s+-]", "_", (row.get(name) or "").lower())
    begins = name in ("family", "attention")
    known = next((word for word in words if text == word or (begins and text.startswith(word))), "")
    if text and not known:
        raise Refused(f"{name} is {row[name][:SHOWN]!r}, expected one of {', '.join(words)}")
    return words.get(known, "")


def _model(row: Row, habits: Habits) -> Transformer:
    family = _word(row, "family", FAMILIES) or "gpt"
    hidden, experts = number(row, "hidden"), number(row, "num_experts")
    ffn = number(row, "ffn", 4 * hidden)
    return Transformer(
        layers=number(row, "layers"),
        hidden=hidden,
        heads=number(row, "heads"),
        ffn=ffn,
        vocab=number(row, "vocab"),
        seq=number(row, "seq"),
        kv_heads=number(row, "kv_heads", 0),
        head=number(row, "head_dim", 0),
        gated=_flag(row, "gated_mlp"),
        rms=family == "llama",
        bias=family == "gpt" and "no_biases" not in (row.get("note") or ""),
        tied=_flag(row, "tied"),
        dropout=habits.dropout,
        attention_dropout=habits.attention_dropout,
        experts=experts,
        top=number(row, "experts_per_token"),
        expert_ffn=number(row, "expert_ffn", ffn),
        shared_ffn=number(row, "shared_expert_ffn", 0),
        dense_layers=number(row, "dense_layers", 0),
        latent=_latent(row.get("mla") or ""),
    )


def _latent(text: str) -> LatentAttention | None:
    found = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text)}
    if not text:
        return None
    missing = [name for name in ("kv_lora", "qk_nope", "qk_rope") if name not in found]
    if missing:
        raise Refused(f"mla is {text!r}, without {', '.join(missing)}")
    return LatentAttention(
        found.get("q_lora", 0), found["kv_lora"], found["qk_nope"], found["qk_rope"], found.get("v", found["qk_nope"])
    )


def _configuration(row: Row, model: Transformer, habits: Habits) -> Configuration:
    pp, note = number(row, "pp"), row.get("note") or ""
    taken = number(row, "tp") * pp * number(row, "cp")
    dp = number(row, "dp", max(1, number(row, "num_gpus") // taken))
    stages = _numbers(row, "stage_layers", pp)
    recompute = _word(row, "recompute", RECOMPUTE) or "none"
    recomputed = _numbers(row, "stage_recompute_layers", pp) if recompute == "partial" else ()
    recompute = {"partial": "none", "selective": habits.selective}.get(recompute, recompute)
    precision = _word(row, "precision", PRECISIONS) or "mixed"
    if precision == "fp8" and "rowwise" in note:
        precision = "fp8-rows"
    if "tf32_only_on" in note:  # those that have units for it
        precision = "tf32"
    given = Configuration(
        dp=dp,
        tp=number(row, "tp"),
        pp=pp,
        cp=number(row, "cp"),
        ep=number(row, "ep"),
        vpp=number(row, "vpp", max(1, (model.layers + 2) // pp) if habits.single_layers and pp > 1 else 1),
        zero=min(1, number(row, "zero", 0)) if habits.once else number(row, "zero", 0),
        sp=_flag(row, "sequence_parallel"),
        micro_batch=number(row, "micro_batch"),
        global_batch=number(row, "global_batch"),
        schedule=_word(row, "schedule", SCHEDULES) or "1f1b",
        recompute=recompute,
        precision=precision,
        attention="unfused" if _word(row, "attention", ATTENTION) == "unfused" else habits.attention,
        reduce=habits.reduce,
        loss="half" if "fp16_cross_entropy" in note else habits.loss,
        overlap=habits.overlap,
        gathers=habits.gathers,
        listed=habits.listed,
        tp_overlap=habits.tp_overlap,
        tp_pipelined=max(habits.tp_pipelined, 0.5) if "async_tp" in note else habits.tp_pipelined,
        gradients=habits.gradients,
        offload=_offload(row, pp),
        offload_overlap=1.0,
        fused=habits.fused,
        separate=habits.separate,
        repeats=habits.repeats,
        context=_word(row, "cp_comm", CONTEXT) or habits.context,
        stage_layers=stages,
        recomputed=recomputed,
        scatter=habits.scatter,
        half_gradients=habits.half_gradients,
        recorded=habits.recorded,
        in_turn=habits.in_turn,
        clipped=habits.clipped,
        skew=habits.skew,
        casts=habits.casts,
    )
    if habits.dealt and pp > 1 and not stages:
        places = _dealt(model, pp)[: model.layers]
        given = replace(given, stage_layers=tuple(places.count(stage) for stage in range(pp)))
    return given


def _dealt(model: Transformer, pp: int) -> list[int]:
    """The stage of each layer, the norm, the head, the cast and the loss in nanotron (`models/base.py`, `build_model`):
    blocks in order, each stage until its share of all products is passed."""
    layer = 4 * model.hidden * model.hidden + (3 if model.gated else 2) * model.hidden * model.ffn
    costs = [*[layer] * model.layers, 0, model.vocab * model.hidden, 0, 0]
    stage, passed, found = 0, 0, []
    for cost in costs:
        found.append(min(stage, pp - 1))
        passed += cost
        stage += passed > sum(costs) * ((found[-1] + 1) / pp)
    return found


def _refused(model: Transformer, given: Configuration) -> str:
    """Why nanotron would not run it (`pipeline_parallel/engine.py`; a stage without blocks has nothing to send)."""
    if given.microbatches < given.pp - 1:
        return f"{given.microbatches} micro-batches for {given.pp} stages"
    return "a stage has nothing to run" if given.pp > 1 + _dealt(model, given.pp)[-1] else ""


def _numbers(row: Row, name: str, stages: int) -> tuple[int, ...]:
    """One for each stage, or none."""
    text = row.get(name) or ""
    found = tuple(whole_number(name, one, 0, LARGEST["layers"]) for one in re.split(r"[|,;/\s]+", text) if one)
    if found and len(found) != stages:
        raise Refused(f"{name} is {text[:SHOWN]!r}, expected a number for each of {stages} stages")
    return found


def _offload(row: Row, stages: int) -> tuple[float, ...]:
    """The optimizer's share on the host, by stage, of weights/gradients/optimizer/activations."""
    text = row.get("stage_offload") or ""
    shares = [(one.split("/") + ["0"] * 3)[2].strip() or "0" for one in text.split("|") if one]
    found = tuple(float(one) if re.fullmatch(r"[\d.]+", one) else -1.0 for one in shares)
    if found and (len(found) != stages or not all(0 <= share <= 1 for share in found)):
        raise Refused(f"stage_offload is {text[:SHOWN]!r}, expected shares for each of {stages} stages")
    return found


def _cluster(row: Row, habits: Habits) -> Cluster:
    mixed = row["gpu"] == "mixed"
    most = 8 if mixed else min(8, HOSTS[ALIASES[device_name(row["gpu"])]].devices)
    count, each = number(row, "num_gpus"), number(row, "gpus_per_node", most)
    hosts, each = (1, count) if count <= each else (count // each, each)
    if hosts * each != count:
        raise Refused(f"{count} devices on hosts of {each}")
    locked = re.search(r"clocks_locked_(\d+)MHz", row.get("note") or "")
    if mixed:
        return _mixed(row.get("device_types") or "", count, each)
    network = row.get("inter_node_GBps_per_gpu") or ""
    return _built(row["gpu"], hosts, each, network, locked[1] if locked else "", habits.network)


@lru_cache(maxsize=256)
def _built(gpu: str, hosts: int, each: int, network: str, locked: str, reached: Reached) -> Cluster:
    name = device_name(gpu)
    found = devices_of(name, hosts, each)
    device = found.devices[0]
    if locked:
        device = _at_clock(device, float(locked))
    root, members = found.root, [(member.of, member.count) for member in found.root.members]
    if network and hosts > 1:
        link = HOSTS[ALIASES[name]].network
        wanted = float(network) * 1e9 * each / link.count
        if reached:
            fractions = tuple((kind, reached[kind != "all_reduce"]) for kind, _ in link.efficiency)
            link = replace(link, efficiency=fractions, taper=0.0, jitter=reached[2], latency_s=reached[3])
            members = [(_with_step(of, reached[3]), count) for of, count in members]
        root = Group(root.level, replace(link, bandwidth=wanted), tuple(Member(of, count) for of, count in members))
    return replace(found, devices=(device,), root=root)


@lru_cache(maxsize=256)
def _mixed(types: str, count: int, each: int) -> Cluster:
    """Hosts in the order of stages and, of each, of replicas: `RTX-3090x8+RTX-2080x8|Titan-RTXx8+RTX-2080x8`."""
    devices, members = {}, []
    for text in types.replace("|", "+").split("+"):
        name, _, number_ = text.strip().rpartition("x")
        if not name or not number_.isdigit() or not int(number_):
            raise Refused(f"device_types {types!r}, not such as RTX-3090x8+RTX-2080x8|Titan-RTXx16")
        kind = HOSTS[ALIASES[device_name(name)]]
        devices[kind.device] = devices_of(device_name(name), 1, 1).devices[0]
        uplink = Link(NETWORK_STEP_S, UPLINKS.get(kind.device, kind.network.total_bandwidth))
        while int(number_) > 0:
            inside = min(each, int(number_))
            members.append(Member(Group("host", kind.inner, (Member(kind.device, inside),)), 1, uplink))
            number_ = str(int(number_) - inside)
    root = Group("pod", Link(NETWORK_STEP_S, min(UPLINKS.values())), merge_equal(members))
    if root.device_count != count:
        raise Refused(f"device_types {types!r}: {root.device_count} devices, not the row's {count}")
    return Cluster(f"mixed:{count}", "nccl", tuple(devices.values()), root, NCCL_OVERHEAD_S)


def _with_step(host: str | Group, latency_s: float) -> str | Group:
    """A host whose part in a ring through several takes so long a step; groups inside it are measured ones."""
    return replace(host, link=replace(host.link, latency_s=latency_s)) if isinstance(host, Group) else host


def _at_clock(device: Device, mhz: float) -> Device:
    nominal = NOMINAL_MHZ.get(device.name)
    if nominal is None:
        raise Refused(f"clocks of {device.name} locked at {mhz:g} MHz, of an unknown nominal clock")
    peaks = tuple((dtype, rate * mhz / nominal) for dtype, rate in device.peaks)
    reached = tuple(replace(one, fraction=LOCKED.get(one.kind, one.fraction)) for one in device.achievable)
    return replace(device, peaks=peaks, achievable=(*reached, Achievable("sustained", 1.0)))


def device_name(gpu: str) -> str:
    """The short name of a device, as in `h100:8`."""
    found = gpu_names.device_name(gpu)
    if found is None:
        raise Refused(f"unknown GPU {gpu}")
    return found
