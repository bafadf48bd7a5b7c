"""The pins of `meshwright price`: of each an example and what it says, those that people usually give first.

Imports nothing that takes time: `meshwright price --help` shows them.
"""

from __future__ import annotations

USUAL = {
    "dp": ("dp=4", "data parallelism; takes the devices that are left where it is not given"),
    "tp": ("tp=8", "tensor parallelism"),
    "pp": ("pp=2", "stages of a pipeline"),
    "cp": ("cp=2", "context parallelism: each sample's positions are split"),
    "ep": ("ep=2", "expert parallelism, carved out of dp and cp"),
    "vpp": ("vpp=2", "runs of layers on each stage (interleaved)"),
    "zero": ("zero=3", "0 whole; 1 optimizer states, 2 gradients and 3 weights sharded too"),
    "sp": ("sp=on", "sequence parallelism with tp"),
    "micro_batch": ("micro_batch=2", "samples at a time on each data-parallel rank"),
    "global_batch": ("global_batch=64", "sequences of a step; the same as --global-batch"),
    "schedule": ("schedule=1f1b", "order of a pipeline"),
    "recompute": (
        "recompute=full",
        "selective: the core of attention; ops: all but attention and every second product; full: whole layers; none",
    ),
    "precision": (
        "precision=mixed",
        "mixed computes in bfloat16 and stores float32, fp16 in float16; bf16 has all in bfloat16; fp8 runs linear "
        "layers in float8 with one scale a tensor, fp8-rows with one a row; fp32, tf32",
    ),
    "attention": (
        "attention=flash",
        "flash as measured of the device, flash2 FlashAttention-2, triton its predecessor, unfused",
    ),
    "offload": ("offload=0.5", "share of the optimizer that lives on the host, one for each stage: 0.5+0 with pp=2"),
}
"""Names, and (an example, what it says)."""

OTHERS = {
    "context": (
        "context=ring",
        "how attention sees all positions under cp: ring exchanges keys and values while it attends, all_gather "
        "gathers them before; all_to_all, pieces",
    ),
    "overlap": ("overlap=0.5", "share of gathers and reductions that overlaps compute"),
    "tp_overlap": ("tp_overlap=0.5", "share of backward's collectives of tp that overlaps weights' gradients"),
    "tp_pipelined": ("tp_pipelined=0.5", "share of all collectives of tp that overlaps the products they belong to"),
    "contention": ("contention=off", "compute does not slow while gathers and reductions run"),
    "offload_overlap": (
        "offload_overlap=1",
        "share of the optimizer's copies to and from the host that overlaps compute",
    ),
    "reduce": ("reduce=bfloat16", "dtype in which gradients are reduced"),
    "gradients": ("gradients=bfloat16", "dtype in which gradients are held until the step, with zero=0 or 1"),
    "half_gradients": (
        "half_gradients=on",
        "backward makes all gradients in the compute dtype before they are added up, with zero=0 or 1",
    ),
    "scatter": ("scatter=off", "ZeRO-1 reduces all gradients everywhere, not to shards"),
    "gathers": ("gathers=3", "how often ZeRO-3 gathers a layer for each micro-batch"),
    "listed": ("listed=9", "how many tensors of a layer ZeRO-3 gathers and reduces one by one, in lists"),
    "clipped": ("clipped=on", "gradients are scaled, clipped by their norm and zeroed in their whole buffer"),
    "loss": ("loss=half", "dtype of the logits in the loss: float32; steps and eager its kernels one by one; half"),
    "fused": ("fused=off", "chains of elementwise ops are not single kernels"),
    "separate": ("separate=on", "queries, keys, values, and the products of a gated MLP, are products of their own"),
    "repeats": ("repeats=on", "keys and values are repeated for all heads of queries before attention"),
    "casts": ("casts=off", "casts to float8 have no kernels of their own"),
    "skew": (
        "skew=1.2",
        "exponent of the power law that loads of experts follow under ep; 0: equal loads, which no law near 0 comes to "
        "(0.01 has a busiest expert of about twice the mean)",
    ),
    "stage_layers": ("stage_layers=13+11", "layers of each stage, dealt evenly unless given; the same as layers=13+11"),
    "recomputed": ("recomputed=4+0", "how many layers of each stage are recomputed"),
    "in_turn": ("in_turn=on", "stages hand over as in DeepSpeed, one message at a time"),
}
"""The same of those that follow the habits of frameworks."""

PINS = USUAL | OTHERS


def told() -> str:
    """A line for each pin."""
    wide = max(len(example) for example, _ in PINS.values())
    return "\n".join(f"  {example:<{wide}}  {words}" for example, words in PINS.values())
