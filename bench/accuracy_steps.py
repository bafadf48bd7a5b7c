"""The part of docs/accuracy.md that is about published training runs: scoreboard, plots, what was fitted, misses."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

HEAD = """\
## Published training runs

`python bench/published.py steps_visible.csv steps2_visible.csv --json published.json`: every row of the tables is
priced as it stands, nothing is searched. `error` is the mean absolute error of the step, `> 0.1` that of rows whose
MFU is above 0.1, `other half` that of the latter when the framework's figures are fitted on every second row and
the others are scored (`bench/published_halves.py`; empty where fewer than two rows are above); `oom` the share of
out-of-memory labels that are right; `regret` how much slower, in published time, the row is that we would choose among
those of one model, cluster and batch. Rows that their table flags as bound by latency and jitter
are in none of the errors of time.
"""

FITTED = """
### What was fitted, and on which rows

**The errors above are of the rows that the figures below were fitted on**, so they say how well so few figures
describe these runs, not how near a run is that nobody has seen. `other half` fits the frameworks' figures on other
rows than it scores; devices, network and habits stay fitted on all. No row has a figure of its own.

- *Frameworks* (`bench/published_frameworks.py`), on all visible rows of their sets: how much longer kernels take than
  the device's tables for Megatron-LM (0.95), torchtitan (1.09) and DeepSpeed (1.16, on GH200 alone);
  host seconds of an op for nanotron (80 us) and DeepSpeed (65 us), of each byte that a stage of DeepSpeed takes over
  (7e-11), on the rows of GH200 alone; the share of an op's that hosts of nanotron's
  pipelines lose besides (0.45). Our own plans have none of them.
- *Devices*: what products keep of their speed in long steps, for B200 (0.64, on the SimuMax rows) and H100 of 96 GB
  (0.7, on torchtitan's). Both also take up whatever else those two sets have in common: NVIDIA's steps in float8 on
  B200 have nothing of it (below), and are priced without, so that it is no clock of the device alone. Attention on that
  H100 keeps 0.85, by the power that an H200 draws and an assumption on clocks, with its rows in view. L4's attention
  and its rate at a locked clock come from single ops that Mist measured, not from steps. What products reach on a
  Titan RTX (0.8) and an RTX 2080 Ti (0.93), and the all-reduces inside hosts of these and of RTX 3090
  (`bench/fit_collectives.py --layers`), come from Sailor's times of single layers; so does what products in TF32
  reach of its peak (0.51 of what others reach; DeepSpeed had a factor of 1.4 before).
- *Network*: 0.55 of the nominal bandwidth between two hosts, falling with their number to the power 0.1. The 0.55 was
  chosen by the steps of the HF sweep, between the best and the mean of the playbook's collectives; the 0.1 is that of
  the best of these, and of scatters on 4 to 128 hosts of 8 H100 (0.90 to 0.65 of nominal, NVIDIA/nccl issue 1229);
  the rows of MegaScale and Megatron-Core were in view when it was chosen. The HF sweep itself is priced with the means
  of the playbook's collectives and no step: 0.6 of the bandwidth for all-reduces, 0.8 for others, 35 us for each rank
  that a ring passes and a jitter of 6e-14 s for each byte and rank
  (18 points of 2 to 64 hosts, off by 13 % on average). Presets do not have it: it is a shared cluster's.
- *Memory*: which launches stand in a device's queue (1,024; three for a collective) and which pipelines run ahead, on
  the HF sweep; nothing on other sets.
- *Habits* of a framework (what it overlaps, which stage has how many layers, FlashAttention-2 or 3, in which dtype
  gradients travel) are facts of its code as far as we know it. They were decided while looking at the visible rows:
  that nanotron's data-parallel reduction is not hidden was taken from its steps. How it deals layers to stages, what
  is reserved on rank 0, which rows it refuses and what its loss does was read in its code. So was how DeepSpeed's
  stages hand over (`in_turn`). A sender waits for messages above 4 MiB and not for smaller ones: the default of
  NCCL_BUFFSIZE, of which we have not read how sends use it, chosen with the rows of `sailor_mit` and GH200 in view.
  That Mist keeps, adds and reduces gradients in half precision was read in its code; so were Megatron's passes over
  gradients once a step (`clipped`), which layers embedding and head stand for, how rows are sorted by expert, and how
  PyTorch's context parallelism goes over one rank's keys after the other (`context=pieces`), and that torchtitan
  repeats keys and values for all heads (`repeats`).
- *Attention in Triton* (Composer on A100): 1.4 and 1.8 times FlashAttention-2 forward and backward, by what Triton's
  own tests of 2022 and 2023 expect of an A100 (`meshwright/configuration/costs.py`), fitted to no step. Composer had a
  figure of 1.06 before and has none now.
- *float8*: the measured products include a kernel that finds the scales of rows. It takes 1.8 ps for each element, by
  the tables of products themselves; frameworks with one scale for a tensor have casts of 4 bytes an element instead,
  and torchtitan none, since `torch.compile` makes them in other kernels. No step was fitted, but torchtitan's rows in
  float8 were in view when its casts were taken to be free, and NVIDIA's (below) when 4 bytes were compared with 6,
  which scales of the tensor at hand would take: they differ by a point.
- ZeRO-3 by DeepSpeed, in the rows of Narayanan et al., gathers three times with no gather begun early, each matrix by
  itself, in lists with a tensor for each rank, which a kernel copies: its code of April 2021 does
  (`partition_parameters.py`). With that, 175B on 384 A100 takes longer under ZeRO-3 than under tensor and pipeline
  parallelism, as published (78.7 and 74.3 s here, 81.6 and 76.8 there). That gathers are not begun early was chosen
  with that comparison in view, the code of lists was read when the network above was found. The six rows of ZeRO-3 in
  that table are 13 % too fast to 9 % too slow (13 too fast to 5 too slow before). Where gathers overlap with compute,
  as our own plans have them, ZeRO-3 is predicted faster there (53 s), and no published run says whether it would be.
- *Contention*: compute takes 0.49 s longer for each second of a collective that overlaps with it over NVLink, and
  0.07 s over other links. Both are medians of what Mist measured on A100 and V100
  (`meshwright/cluster/contention.py`), fitted to no step; other devices are taken to be alike. Our planner's own
  clock has it too.
"""

MISSES = """
### What misses, and why

- HF sweep, pipelines on several hosts: each tensor-parallel rank adds 2.3 ms to each layer of a stage, whatever the
  micro-batch, and nothing without tensor parallelism or on one host. Ranks that lose time at random and wait for each
  other would do so, and little memory waits there, as where the host is behind; why hosts lose it we do not know.
- HF sweep, regret: 0 in five of seven groups. 95 % on 64 GPUs is one row (data parallel alone, two samples at a time)
  that took twice its neighbours' time; the same on 8 and 128 GPUs is priced within 3 %. On 512 GPUs no row has an MFU
  above 0.042: most steps are several times longer than on 256, with stalls of about 1.1 s for each micro-batch of
  pipelines, whatever their stages and ranks; the second row takes two thirds longer than the fastest. Some smaller
  jobs stall too. No configuration foretells a bad host.
- HF sweep, rank correlation: 0.94 to 0.99, but 0.905 on 256 GPUs, where reductions that nothing hides follow a slow
  host; 8 stages are predicted up to 25 % too slow (51 % on one host), and tensor parallelism over 16 and 32 ranks too
  fast where micro-batches are small: its collectives of 17 MB take 0.9 and 2.1 ms, about 60 us for each rank, where
  those of 256 MB show 35.
  With 32 and 64 samples at a time (0.5 to 1 GB) tensor parallelism over 16 ranks is 12 % too slow where its pair of
  hosts is the only one (one row), and 2 to 46 % too fast on 4 to 16 hosts (12 rows): pairs share no link, but all wait
  for the slowest of them. Other rows of 32 and more samples are 3 % too slow on average.
- HF sweep, memory: what is predicted is what PyTorch's allocator has reserved on rank 0. Operands of collectives that
  wait are most of it at the peak: of the whole warm-up where another stage has as many layers as the first (8 stages:
  46 to 50 of them measured, 48 priced); of the queue in one stage; elsewhere of the host's lead, which grows with
  each micro-batch until the queue is full (two stages with 2 micro-batches: 13 to 15 measured, 14 to 25 priced; with
  4 and more 44 to 55, 43 to 50 priced; the rule was found in these rows). Six runs of one stage on 32 to 128 GPUs
  have none of them (27 GB where 41 to 78 are predicted, 1.1 points of the 8.0 %): the same program holds 52 GB on 16
  GPUs and 27 GB on 32, where its step takes half as long again as predicted. Nor have pipelines on 512 GPUs, which
  stall. That groups of tensor parallelism over more than two hosts do not run ahead was taken from the rows.
- Llama 3's rows do not say how stages are interleaved; its paper does, layer by layer, and they are priced so
  (without it half of a step with as many micro-batches as stages was a bubble). No such row is in these tables. At
  the layouts of its Table 4 the 8K stages on 8,192 and 16,384 GPUs were predicted 24 and 19 % too fast, and are now
  14 and 13 %: of what overlaps the paper names FSDP's gathers and reductions and the sends between stages, so tensor
  parallelism's collectives are no longer hidden as in Megatron-Core. This was chosen with those two figures in view.
  What is left has no figure of its own in public: masks of documents make micro-batches unlike each other, and
  attention was not yet FlashAttention-3 (priced so, 3 points less). Gradients are added up over micro-batches, whatever
  a row calls the stage of ZeRO; reduced with each, steps would be 2.7 and 3.3 times as long as published. 131,072
  tokens on 16,384 GPUs are predicted 24 % too slow, against a step that was derived from half of attention's
  products, where the mask leaves fewer.
- Routed experts with tensor and sequence parallelism: ranks exchange their own rows and gather what arrived, as
  Megatron-Core's dispatcher does. No row here has it.
- torchtitan, long sequences: 32,768 tokens are 1 % too fast (8B) and 4 % too slow (405B), 131,072 tokens over 4 ranks
  12 % too fast and 6 % too slow. They were 9 and 0, 26 and 7 % too fast: keys and values are repeated for all heads,
  and cards limited to 500 W slow in attention too. FlashAttention-2 draws 660 to 692 W on an H200 (measured), as much
  as products do; 0.85 is what it would keep of that clock at 500 W if power grew with the clock to 2.5, an assumption,
  taken with these rows in view (0.82 serves as well). The run on H200 went from 2 to 10 % too fast: PyTorch's
  FlashAttention-2 is faster there than was priced. Memory
  is what the allocator has reserved on the last stage's first rank: the loss of 2024's rows is PyTorch's own in
  float32 (three copies of the logits, four over tensor-parallel ranks), stages keep the logits of all micro-batches,
  FSDP's streams have pools of their own. The causes were found with these rows in view; none has a fitted figure.
  Since the last stage has a layer less, as its code says, 405B is priced 8 to 16 % below what is reported.
  Three rows of one shape differ by 9 % as published.
- torchtitan, float8 with a scale for each row, 12 and 20 % too fast (15 and 23 % before the scales of all operands were
  priced: the measured tables find those of one). As published, over 8 tensor-parallel ranks, it is no faster than
  bfloat16 (70B) or 18 % slower (8B); without tensor parallelism it is 10 % faster than that, as priced (below). On an
  H200 the products themselves are as fast with scales for rows as with one (1.31 PFLOP/s of 32,768 x 7,168 x 8,192;
  without fast sums 1.20). What else tensor parallelism costs there no source tells.
- SimuMax's DeepSeek-V2 rows are 4 to 14 % too fast (10 to 19 % without sorting and copies of latent attention), most
  with few micro-batches: about 20 ms of a step do not grow with them and are not priced. Tensor parallelism over 8
  ranks is 8 to 13 % too fast there. SimuMax's own simulator, which has that machine's kernels and collectives
  measured, is 6 to 11 and 9 % too fast on these rows; iterations 2 and 3 were timed.
- Composer: sequences of 512 and 1,024 are up to 23 % too slow on the smallest models, 13B on 8 cards of 40 GB is 11 to
  13 % too fast; sequences of 32,768 and 65,536, which were 11 to 30 % too fast with FlashAttention-2, are up to 10 %
  too slow. One of three equal runs of 1.3B, on 32 GPUs, took 20 % longer than the others.
  Its loss is fused, on logits in bfloat16 (mosaicml/llm-foundry of June 2023, `modeling_mpt.py`), but two metrics of
  training read them again in float32 (`LanguageCrossEntropy`, `LanguagePerplexity`), together about the bytes of the
  loss in float32 that is priced. Without metrics the set would be off by 4.9 % (models of 0.13B with 2,048 tokens 8 to
  11 % too fast where they are 5 to 9 % too slow); whether these runs took any is not published.
- Mist on L4: it has 58 processors, the RTX PRO 6000, whose table it is priced by, 188. Single products that Mist
  measured at a locked clock (20) are off by 4.4 % on average with waves of tiles on 58 processors, 3.6 % too slow; by
  the same sizes of the table they were 4 to 16 % too slow. One of 2,048 by 2,048 with a sum over 8,192, which the
  library splits there, is 18 % too slow. Others that have fewer processors are priced so too; nothing was measured on
  them. Steps of Megatron-LM there are 4 % too fast on average: its factor of 0.95 is that of A100 and B200.
- Mist's plan 20: our planner chooses the same stages and micro-batches, and another order. It prices every op of our
  eager `llama`, the several of its rotary embedding among them; layers described by hand have fewer, and by these
  Mist's plan was 2 % faster than ours. Priced op by op, under pins, it is 9.1 s and ours 3 % faster. Plan 1 is
  0.2 % slower than ours and holds 47.7 GiB as we run it, on a card of 40; plan 24 is 0.1 % faster and holds 24 GiB, on
  a card of 24 of which 21 are usable; Mist keeps gradients in half precision.
- Sailor on GH200: rows of one stage with 2 and 4 samples at a time are 18 % too fast, 7 and 15 % by Sailor's own times
  of single layers. Rows of four stages were 6 to 11 % too fast: its engine gathers what arrives in zeros that the host
  makes and copies (`reconstruct_tensor`), 7e-11 s for each byte, and reads the sizes there, so that no host is ahead of
  its device. They are now within 1.8 %, the set went from 7.1 to 4.7 %. What it measured of the network (92 %) is
  sends. Taken for all-reduces too, reductions of gradients were priced at half or less of the 0.02 to 0.1 s that it
  reports, and of two rows on 8 GPUs the wrong one was chosen (22 %). They now have the 0.55 of other networks, taken
  with that choice and those reports in view.
- Sailor's memory is what `nvidia-smi` reports after a step (`pipe_engine.py`), the largest over ranks, of runs other
  than those that were timed. Two rows of `sailor_mit` on hosts of 2 report 4.1 and 5.9 GB, where what backward reads
  of softmax is at least 3.5 and 6.4 GB, and weights with AdamW's states are 1.6 and 3.3 GB; Sailor's own simulator
  says 16 and 20 GB. That program can not have been the one that was timed: states and about 2.5 GB are all there is
  room for. Without the two, memory is off by 11 %.
- `sailor_mit`, the row with a stage on each of four hosts: it took 21 % longer than predicted. The order of messages
  is that of the code, and prices the rows of two stages within 6 %; the links are as measured. The cause was not
  found. All-reduces among 8 RTX 3090, fitted to 8 to 512 MB, are 10 % too slow at 16 MB: their time grows faster than
  the bytes there, which no table of ours allows. Both together make 69.0 and 69.8 s of 83.8 and 66.1, and the wrong
  row of three is chosen.
"""


OUTSIDE = """
### Runs that nothing was fitted on

`python bench/published.py bench/outside_runs.csv`: public runs of other sources, each named in its row, with their
framework's habits. Nothing was fitted to them, but after their errors were seen habits were looked up (NeMo's
gradients, the layers that embedding and head stand for, the size of Qwen3's heads, what is not dropped), one figure was
left out (what B200 loses in long steps, in float8), and what float8 products include was taken from their tables.
"""

OUTSIDE_WORDS = """
- *torchtitan_torchao*: Llama 3 8B on 8 H100 in bfloat16 and in float8 with one scale for a tensor and one for a row;
  cards of 500 W are assumed, as in torchtitan's tables. The last one was 6 % too fast before the scales of all operands
  were priced, which was done with it in view.
- *megascale*: Megatron-LM on 256 to 12,288 A100, the baseline of MegaScale's Table 2, within 4.3 %. Attention (fused,
  recomputed) and ZeRO-1 are assumed. 6,144 to 12,288 were 13, 12 and 27 % too slow while the network fell to the power
  0.25.
- *mcore_r08*: NVIDIA's table of Megatron-Core, 48 ranks of ZeRO-1 each. It says neither how many samples are taken at a
  time, so that one is, nor how stages are interleaved: layer by layer, by what its README says of sends (24 % off
  without). They were 41 % too slow while the network fell to the power 0.25. With four and eight tensor-parallel ranks
  in one stage they still are 29 and 87 %, as a replica has four samples in all and gradients in float32 take longer
  than what hides them; with four samples at a time, 3 and 45 %. Others are 20 % too slow to 14 % too fast.
- *nemo_h100*, *bridge_h100*: NVIDIA's recipes in float8, 5B to 405B on 8 to 1,024 H100. They were off by 8.2 and 5.7
  %; their code keeps, adds and reduces gradients in bfloat16 (`set_precision_configs`, `set_llama3_common_configs`),
  which was found after that. What is left has no common sign: 5B with 4 samples at a time 15 % too fast, 22B 11.
- *bridge_b200*: 44 % too slow with the 0.64 that SimuMax's steps in bfloat16 have, hence without it in float8.
- *bridge_gb200*, *bridge_gb300*: 405B was 25 and 20 % too slow, with the kernel that finds the scales of rows in all
  products (now 18 and 13 %) and the head on top of as many layers as other stages have (now 5 and 6 %).
- *bridge_h100_moe*: Qwen3 30B with 8 ranks of experts, whose heads are larger than a share of the width. The run that
  drops tokens is 1 % too slow (14 % too fast without sorting and with smaller heads). The one that drops none takes
  twice as long for the same products: priced with the loads that aiconfigurator's layers of experts have where nothing
  balances them (a power law of 1.2), so that the busiest rank has 1.7 times its share, it is 11 % too fast (57 %
  before). Which loads that run had is not published.
- *dlperf_v100*: Megatron-LM of 2021 on 1 to 32 V100 in hosts of 8 with one card of 100 Gb/s, priced before any was
  looked at. Inside one host and in pipelines 1 to 11 % off, but four tensor-parallel ranks, 22 % too slow. Between
  hosts they are too fast: two replicas of 8 ranks 21 %, tensor parallelism over 16 and 32 ranks 56 and 42 %. There a
  collective takes the bytes of a ring at 7 to 10 GB/s; the trees that later NCCL takes between two hosts, which are
  priced, move half of them.
- *alpa_intra_gpt*: layers of GPT by Alpa on 1 to 8 V100 of one host, the shardings that its ablation names, priced
  before any was looked at. Groups of four neighbours are 19 to 20 % too slow, as above, pairs 8 to 16 % too fast,
  others within 8 %: in its cube mesh four neighbours move about 85 GB/s, by these steps and those of DLPerf, where
  Mist measured 35 and Sailor's times of single layers say 35 to 65. The prices keep what was measured of the link. One
  of four plans that ran out of memory is priced to fit.
- *dgxc_h100*: NVIDIA's recipes of February 2025 on 8 to 2,304 H100, Llama 3.1, GPT-3, Nemotron-4 and Grok-1, half in
  bfloat16 and half in float8, with NeMo's habits as they stood. Dense models in bfloat16 are 1 to 9 % too fast (but
  Nemotron 15B on 2,048, 5 % too slow), in float8 7 % too fast to 12 % too slow, the mixture of experts 2 % too fast to
  13 % too slow. No memory is published. Nemotron 340B on 128 is priced at 99 GB and Llama 405B in bfloat16 on 576 at
  82, on cards of 80 where they ran.
"""


MIST = """
### Plans that Mist chose

`python bench/mist_plans.py mist_chosen_plans.csv steps2_visible.csv`: Mist's plans under our prices (eager, mixed
precision), and what our planner chooses for the same model, cluster and memory; `measured` is how far Mist's measured
step is from its plan's price under Mist's habits. Both planners are asked for one model: our `gpt` has
biases, which Mist's has not, so that its plan's price here is not that of the measured run. `by pins`: Mist's plan as
our planner prices it, op by op; others by layers that are described by hand, which pins cannot say (a part of the
layers recomputed). A plan that needs more memory than the card has, as we run it (gradients in float32, eager
kernels), is none that we could choose.
"""


def mist_part(found: dict[str, Any]) -> str:
    """Of the JSON of bench/mist_plans.py."""
    titles = ("plan", "model", "GPUs", "measured", "Mist's, s", "GiB", "ours, s", "GiB", "not compared, or not run")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for one in found["plans"]:
        seconds = [f"{one[key]:.3g}" if key in one else "" for key in ("mist_s", "ours_s")]
        held = [f"{one[key] / 2**30:.3g}" if key in one else "" for key in ("mist_bytes", "ours_bytes")]
        error = f"{one['measured_error']:+.1%}" if "measured_error" in one else ""
        columns = [one["plan"], one["model"], f"{one['gpus']} {one['gpu']}", error]
        seconds[0] += " by pins" if "pins" in one else ""
        columns += [seconds[0], held[0], seconds[1], held[1]]
        columns.append((one.get("reason") or one.get("over", "")).replace("|", "/"))
        lines.append("| " + " | ".join(columns) + " |")
    return MIST + "\n" + "\n".join(lines) + "\n"


TITLES = ("set", "rows", "error", "bias", "> 0.1", "other half", "rank", "oom", "regret", "worst", "memory")


def steps_part(found: dict[str, Any], halves: dict[str, Any], images: str) -> str:
    """Of the JSON of bench/published.py and bench/published_halves.py; images: the folder of the plots."""
    titles = (*TITLES, "not modelled")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for name, one in found["sets"].items():
        keys = ("oom_agreement", "median_regret", "worst_regret", "memory_error")
        columns = [
            name,
            str(one["rows"]),
            *(_percent(one[key]) for key in ("mean_abs_error", "bias", "mean_abs_error_mfu_over_0.1")),
            _percent(halves.get(name, {}).get("mean_abs_error")),
            "" if one["rank_correlation"] is None else f"{one['rank_correlation']:.2f}",
            *(_percent(one[key]) for key in keys),
            str(len(one["not_modelled"])),
        ]
        lines.append("| " + " | ".join(columns) + " |")
    plots = f"\n![Predicted against published steps]({images}/steps.svg)\n![The same of memory]({images}/memory.svg)\n"
    return HEAD + "\n" + "\n".join(lines) + "\n" + plots + FITTED + MISSES


def outside_part(found: dict[str, Any]) -> str:
    """Of the JSON of bench/published.py for bench/outside_runs.csv."""
    lines = ["| set | rows | error | bias |", "|---|---|---|---|"]
    for name, one in found["sets"].items():
        lines.append(f"| {name} | {one['rows']} | {_percent(one['mean_abs_error'])} | {_percent(one['bias'])} |")
    return OUTSIDE + "\n" + "\n".join(lines) + "\n" + OUTSIDE_WORDS


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


SIZE, EDGE = 460, 46
COLOURS = ("#1b6ca8", "#c8553d", "#588b8b", "#8e5572", "#6a994e", "#bc6c25", "#5f0f40", "#3d5a80", "#9a8c98", "#2a9d8f")


def scatter_svg(found: dict[str, Any], key: str, unit: str) -> str:
    """Predicted over published, both on logarithmic axes, a colour for each set."""
    sets = {name: one[key] for name, one in found["sets"].items() if one[key]}
    values = [value for points in sets.values() for point in points for value in point if value > 0]
    low, high = log10(min(values)), log10(max(values))

    def place(value: float) -> float:
        return (log10(value) - low) / (high - low) * (SIZE - 2 * EDGE)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE + 170} {SIZE}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{SIZE + 170}" height="{SIZE}" fill="white"/>',
        f'<line x1="{EDGE}" y1="{SIZE - EDGE}" x2="{SIZE - EDGE}" y2="{EDGE}" stroke="#999"/>',
        f'<text x="{SIZE / 2}" y="{SIZE - 10}" text-anchor="middle">published, {unit}</text>',
        f'<text x="14" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 14 {SIZE / 2})">',
        f"predicted, {unit}</text>",
        *_ticks(low, high),
    ]
    for number, (name, points) in enumerate(sets.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<text x="{SIZE - 20}" y="{EDGE + 16 * number}" fill="{colour}">{name}</text>')
        parts += [
            f'<circle cx="{EDGE + place(x):.1f}" cy="{SIZE - EDGE - place(y):.1f}" r="2.5" fill="{colour}"/>'
            for x, y in points
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> Sequence[str]:
    found = []
    for power in range(int(low) - 1, int(high) + 2):
        if low <= power <= high:
            at = (power - low) / (high - low) * (SIZE - 2 * EDGE)
            found.append(
                f'<text x="{EDGE + at:.1f}" y="{SIZE - EDGE + 14}" text-anchor="middle">{10.0**power:g}</text>'
            )
            found.append(f'<text x="{EDGE - 4}" y="{SIZE - EDGE - at:.1f}" text-anchor="end">{10.0**power:g}</text>')
    return found
