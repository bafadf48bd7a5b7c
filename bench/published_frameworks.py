"""Habits of the frameworks behind published runs, and the figures fitted to their visible rows: at most three each.

Habits are what their code does: which kernels are fused, what runs beside compute, in which dtype gradients travel.
The figures are `Framework`'s: host seconds of an op, of a hand-over between stages, and how much longer kernels take
than those of the device's tables. Our own plans have none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.configuration.framework import Framework

Row = dict[str, str]


@dataclass(frozen=True)
class Habits:
    """selective: what a row's `selective` recomputation means. dealt: stages get layers as nanotron deals them. in_use:
    memory is what the driver counts, the context included; first_rank: what PyTorch's allocator has reserved on rank 0,
    last_rank: on the first rank of the last stage, under FSDP.
    once: gradients are reduced once a step, whatever ZeRO says. single_layers: stages are interleaved layer by layer
    where a row does not say. network: what all-reduces and other collectives reach
    of the network between hosts of this cluster, its jitter and a ring's step, where other measurements tell."""

    framework: Framework
    fused: bool = True
    dropout: bool = False
    attention_dropout: bool = False
    reduce: str = "float32"
    overlap: float = 1.0
    tp_overlap: float = 0.0
    tp_pipelined: float = 0.0
    attention: str = "flash"
    gradients: str = "float32"
    in_use: bool = False
    selective: str = "selective"
    context: str = "ring"
    dealt: bool = False
    first_rank: bool = False
    last_rank: bool = False
    separate: bool = False
    repeats: bool = False
    scatter: bool = True
    half_gradients: bool = False
    recorded: bool = False
    loss: str = "float32"
    once: bool = False
    gathers: int = 2
    listed: int = 0
    in_turn: bool = False
    single_layers: bool = False
    clipped: bool = False
    skew: float = 0.0
    casts: bool = True
    network: tuple[float, float, float, float] | None = None


MEGATRON_2021 = Habits(
    Framework("Megatron-LM, 2021", kernels=0.95),
    dropout=True,
    attention_dropout=True,
    reduce="float16",
    overlap=0.0,
    clipped=True,
)
DEEPSPEED_2021 = replace(MEGATRON_2021, overlap=0.0, gathers=3, listed=4)
"""ZeRO-3 of April 2021 (microsoft/DeepSpeed 112ebff6, `runtime/zero/partition_parameters.py`, `stage3.py`): each of the
four matrices of a layer is gathered and reduced by itself, as a list with a tensor for each rank, between
synchronizations."""
MEGATRON = Habits(Framework("Megatron-LM", kernels=0.95), overlap=0.0, context="all_to_all", clipped=True)
"""Gradients are scaled in their buffer before it is reduced, and zeroed with it (NVIDIA/Megatron-LM,
`core/distributed/param_and_grad_buffer.py`), their norm is taken and they are clipped (`core/optimizer/clip_grads.py`).
"""
MEGATRON_2022 = replace(MEGATRON_2021, tp_overlap=1.0)
MEGATRON_CORE = Habits(
    Framework("Megatron-Core"), overlap=0.9, tp_overlap=1.0, tp_pipelined=0.5, clipped=True, single_layers=True
)
"""Sends between stages overlap with compute "by default" (README of core_r0.8.0), which only interleaved stages can
(`training/arguments.py`): where a row does not say, they have a layer each, as in NVIDIA's recipes of GPT-3 175B."""
NEMO = replace(MEGATRON_CORE, framework=Framework("NeMo"))
"""NVIDIA's recipes on Megatron-Core. Those in float8 keep, add and reduce gradients in bfloat16 (NVIDIA/NeMo 02a0e6a5,
`scripts/performance/helpers.py`, `set_precision_configs`), those in bfloat16 in float32 (`bf16_mixed`)."""
LLAMA_3 = replace(
    MEGATRON_CORE,
    framework=Framework("Llama 3"),
    context="all_gather",
    once=True,
    tp_overlap=0.0,
    tp_pipelined=0.0,
    clipped=False,
)
"""Dubey et al., 2024, section 3.3.2: interleaved stages, of which the first chunk has the embedding alone and the last
the head, of 126 layers on 16 ranks; context parallelism gathers keys and values. Gradients are added up in float32 over
micro-batches, then reduced; parameters stay gathered. It says that FSDP's gathers and reductions and sends between
stages overlap with compute, and names nothing of the kind for tensor parallelism."""
NANOTRON = Habits(
    Framework("nanotron", op_host_s=8e-5, stall=0.45),
    attention="flash2",
    fused=False,
    overlap=0.0,
    dealt=True,
    first_rank=True,
    scatter=False,
    half_gradients=True,
    recorded=True,
    loss="steps",
    network=(0.6, 0.8, 6e-14, 35e-6),
)
"""huggingface/nanotron 2cde8f63 (December 2024). `helpers.py`: rank 0 writes the table. `trainer.py`: peaks are reset
after each of the first steps, so that what is left of them is the memory reserved; with ZeRO-1 gradients are reduced by
one all-reduce after the last backward; without it by DDP while it runs, of which steps show nothing hidden (streams
share one queue, CUDA_DEVICE_MAX_CONNECTIONS=1). `gradient_accumulator.py`: bfloat16 gradients
are added to a float32 buffer when backward is over. `tensor_parallel/functional.py`: operands of reduce-scatters are
whole tensors that nothing else holds; its loss is made of single ops.
The network is fitted to the means of the collectives of 256 MB that the playbook shows of 2 to 64 hosts (18 points, off
by 13 % on average), and to no step: a gather's seconds grow with its ranks, 35 us for each."""
TORCHTITAN = Habits(
    Framework("torchtitan", kernels=1.09),
    selective="ops",
    context="pieces",
    attention="flash2",
    separate=True,
    repeats=True,
    last_rank=True,
    loss="half",
    casts=False,
)
"""pytorch/torchtitan, December 2024 to June 2025. Memory is what PyTorch's allocator has reserved at most, on the first
rank of the last stage (`metrics.py`). Keys and values are repeated for all heads (`models/llama/model.py`,
`repeat_kv`). Projections are single products, of which selective recomputation keeps every
second (`parallelize_llama.py`). The loss is compiled with the rest: its kernel reads logits in bfloat16 and writes
their gradient, and casts to float8 are part of the kernels around them. In December 2024 the loss was not compiled
(e8977b007): PyTorch's own in float32, as the memory of those rows shows."""
COMPOSER = Habits(Framework("Composer"), fused=False, attention="triton")
"""mosaicml/llm-foundry: attention of its tables of A100 is FlashAttention in Triton (`scripts/train/yamls/pretrain`,
`attn_impl: triton`), that of H100 FlashAttention-2 (51652eae, `submit_benchmarks.py`, `gpu-flash2`)."""
DEEPSPEED = Habits(
    Framework("DeepSpeed", op_host_s=6.5e-5, kernels=1.16, filled_s=7e-11),
    fused=False,
    dropout=True,
    overlap=0.0,
    in_use=True,
    in_turn=True,
)
"""Its engine as Sailor has it (eth-easl/sailor cf2c8e3, `deepspeed/pipe_engine.py`, `p2p.py`): sends and receives block
the stream, gradients before activations, in parts that tensor-parallel ranks gather in zeros that the host makes and
copies (`utils.py`, `reconstruct_tensor`), after it has read the sizes. Sailor's times of single layers of OPT-350M and
Llama 3 8B are 1.25 times ours on GH200, those of OPT-350M 1.16, layers 1.0 on A100, 0.9 on V100, 1.1 on RTX 3090 (Titan
RTX and RTX 2080 Ti are fitted to them): no factor there."""
MIST = Habits(Framework("Mist"), overlap=0.9, gradients="float16", reduce="float16")
"""Dazz993/Mist d69e530, `re_swap_manager/flat_param.py`: gradients are held, added and reduced in weights' dtype."""
ALPA = Habits(Framework("Alpa"), reduce="float16", overlap=0.0)
DLPERF = Habits(Framework("Megatron-LM, DLPerf"), dropout=True, attention_dropout=True, reduce="float16", overlap=0.0)
OTHER = Habits(Framework("unknown"))

SETS = {
    "sc21": MEGATRON_2021,
    "korthikanti": MEGATRON_2022,
    "hf_": NANOTRON,
    "torchtitan": TORCHTITAN,
    "mosaic": COMPOSER,
    "sailor": DEEPSPEED,
    "simumax": MEGATRON,
    "mist_megatron": MEGATRON,
    "mist": MIST,
    "dgxc": NEMO,
    "nemo": NEMO,
    "bridge": NEMO,
    "megascale": MEGATRON,
    "mcore": MEGATRON_CORE,
    "llama3": LLAMA_3,
    "alpa": ALPA,
    "dlperf": DLPERF,
}


SKEWED = 1.2
"""Exponent of the loads of experts where nothing balances them: aiconfigurator's measured layers have 1.01 and 1.2."""


def habits_of(row: Row) -> Habits:
    """By the name of the row's set; what its note says of them has the last word."""
    name, note = (row.get("set") or "").lower(), row.get("note") or ""
    found = next((habits for prefix, habits in SETS.items() if name.startswith(prefix)), OTHER)
    if name.startswith("sc21") and number_of(row, "zero") == 3:
        found = DEEPSPEED_2021
    if name.startswith("sailor") and "GH200" not in row["gpu"]:
        found = replace(found, framework=replace(found.framework, kernels=1.0))
    if found is COMPOSER and "H100" in row["gpu"]:
        found = replace(found, attention="flash2")
    if found is NEMO and (row.get("precision") or "").lower().startswith(("fp8", "float8")):
        found = replace(found, reduce="bfloat16", gradients="bfloat16")
    if name.startswith("torchtitan") and number_of(row, "pp") > 1:
        found = replace(found, once=True)
    if name.startswith("torchtitan") and ("_2024" in (row.get("source_short") or "") or "no_compile" in note):
        found = replace(found, loss="eager")
    if "dropless" in note:
        found = replace(found, skew=SKEWED)
    if "no_compile" in note:
        found = replace(found, fused=False)
    if "mp_mode_pure" in note:
        found = replace(found, reduce="bfloat16")
    if "no_overlap_of_grad" in note:
        found = replace(found, overlap=0.0)
    if "overlapped_grad" in note:
        found = replace(found, overlap=0.9)
    return found


def number_of(row: Row, name: str) -> int:
    return int(float(row.get(name) or 0))
