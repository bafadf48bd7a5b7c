"""`meshwright fits MODEL`: one line per GPU kind and count: fits or not, by which recipe, how fast."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from math import prod
from typing import TYPE_CHECKING, Any

from meshwright.cli.answer import ROUGH
from meshwright.cli.options import add_training, check_training, precision_for
from meshwright.errors import ModelError
from meshwright.models.arguments import add_json, add_model_arguments, check_folder, reference_of, write_json

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.cluster import Cluster
    from meshwright.price.parameter import Setting

GPUS = "4090,l40s,a100,h100,h200,b200"
COUNTS = "1,2,4,8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_training(parser)
    parser.add_argument(
        "--gpus", default=GPUS, metavar="NAMES", help=f"kinds, by short names, or TOML files (default {GPUS})"
    )
    parser.add_argument("--cluster", metavar="NAME", help="this one alone, as `plan` takes it: h100:8, or a TOML file")
    parser.add_argument(
        "--counts", default=COUNTS, metavar="N,...", help=f"of each, in one host; 2x8 in two (default {COUNTS})"
    )
    add_json(parser, "the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 where something fits, 1 where nothing does."""
    check_folder("--json", args.json)
    check_training(args)

    from meshwright.cluster import load_cluster

    if args.cluster and (args.gpus, args.counts) != (GPUS, COUNTS):
        raise ModelError("--cluster with --gpus or --counts", "one of them", "drop --cluster, or the others")
    counts = args.counts.split(",")
    if not all(part.isdecimal() and int(part) for count in counts for part in count.split("x")):
        raise ModelError(f"--counts {args.counts}", "numbers from 1, such as 1,2,8; of two hosts 2x8", "correct it")
    clusters = (
        [load_cluster(args.cluster)]
        if args.cluster
        else [
            load_cluster(name)
            for gpu in args.gpus.split(",")
            for name in ([gpu] if gpu.endswith(".toml") else [f"{gpu}:{count}" for count in counts])
        ]
    )

    if args.json != "-":
        print(f"reading {args.model}", file=sys.stderr)  # what follows takes seconds to import

    from meshwright.capture import capture
    from meshwright.errors import RuleWarning

    reference, programs = reference_of(args), {}
    rows: list[dict[str, Any]] = []
    for cluster in clusters:
        precision = precision_for(args, cluster)
        if precision not in programs:
            given = reference.meta(args.global_batch)
            programs[precision] = capture(*given, precision=precision, allow=args.allow)  # type: ignore[arg-type]
            if args.json != "-" and not rows:
                batch = programs[precision].batch
                more = "" if args.global_batch else ", or the next that the GPUs divide"
                print(
                    f"{reference}, global batch {batch}{more}, {args.optimizer}; step and memory of each GPU, "
                    "batch in how many micro-batches, recipe and the pins with which `meshwright plan` gives it:"
                )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuleWarning)
            rows.append(_row(args, _divided(args, programs[precision], cluster), cluster, precision))
        if args.json != "-":
            print(_line(rows[-1]), flush=True)
    if args.json != "-":
        print("\n".join([*_fewest(rows), *_clocks(clusters), _further(args, rows)]))
    if args.json:
        write_json(args.json, json.dumps(rows, indent=1))
    return 0 if any(row["fits"] for row in rows) else 1


def _divided(args: argparse.Namespace, program: Program, cluster: Cluster) -> Program:
    """With the next larger batch that the devices divide, where none is given: 3 GPUs do not share 8 samples."""
    count = cluster.device_count
    if args.global_batch is not None or program.batch % count == 0 or not program.batch_varies:
        return program
    return program.at_batch(-(-program.batch // count) * count)


def _fewest(rows: list[dict[str, Any]]) -> list[str]:
    """Of each kind the least number that fits."""
    from meshwright.explain.pace import HOST_BOUND, what_helps

    found: dict[str, tuple[int, str]] = {}
    for row in rows:
        kind, _, count = row["cluster"].partition(":")
        if row["fits"]:
            number = prod(map(int, count.split("x"))) if count else 1
            found[kind] = min(found.get(kind, (1 << 30, "")), (number, row["cluster"]))
    said = [f"fewest that fit by a recipe: {', '.join(name for _, name in found.values())}"] if found else []
    said += [ROUGH] if any(row["rough"] for row in rows) else []
    if any(row["host_bound"] for row in rows):
        said.append(f"host-bound: {HOST_BOUND}; more GPUs help little there, {what_helps(False)}")
    open_ones = [row["cluster"] for row in rows if row["undecided"]]
    if open_ones:
        said.append(
            f"not decided by recipes: {', '.join(open_ones)}; `meshwright plan` with that --cluster searches further"
        )
    if any(not row["fits"] and not row["undecided"] for row in rows):
        said.append("what cannot fit may with optimizer state on the host: `meshwright plan` with --pin offload=auto")
    return said


def _clocks(clusters: list[Cluster]) -> list[str]:
    """Where kinds are not priced alike: clocks under load were measured on some alone."""
    from meshwright.cost.clocks import knows_load

    kinds = {one.name.partition(":")[0]: knows_load(one.devices[0]) for one in clusters}
    measured = [kind for kind, known in kinds.items() if known]
    if not measured or len(measured) == len(kinds):
        return []
    return [
        f"{', '.join(measured)}: at the lower clocks that long steps were measured to run at; the others have none "
        "measured: their long steps may be slower than said"
    ]


def _row(args: argparse.Namespace, program: Program, cluster: Cluster, precision: str) -> dict[str, Any]:
    """By the fastest known recipe of one stage; then by any plan that recomputes all activations."""
    from meshwright.explain.recipes import ONE_DEVICE, SERVER, baselines
    from meshwright.planner.effort import headroom_of
    from meshwright.price.parameter import Setting
    from meshwright.sizes import parse_bytes

    memory = parse_bytes(args.memory)
    row: dict[str, Any] = {"cluster": cluster.name, "precision": precision, "fits": False, "undecided": False}
    row |= {"host_bound": False, "rough": False}
    row |= {"global_batch": program.batch, "even": program.batch % cluster.device_count == 0}
    setting = Setting(args.optimizer, precision)
    headroom = headroom_of(memory, None, cluster.devices[0].usable_bytes)
    if why := _too_small(program, cluster, setting, memory, headroom):
        return row | {"why": why}
    found = baselines(program, cluster, args.optimizer, precision, memory, stages=False, headroom=headroom)
    met = [one for one in found if one.step_s is not None and one.name != SERVER]
    fitting = [one for one in met if one.fits]
    if fitting:
        best = min(fitting, key=lambda one: one.step_s or 0.0)
        alone = "one GPU" + ("" if best.name == next(iter(ONE_DEVICE)) else f" + {best.name}")
        name = alone if cluster.device_count == 1 else best.name
        row |= {"host_bound": best.host_bound, "rough": best.rough}
        return row | _figures(program, name, best.step_s, best.peak_bytes, best.microbatches, best.as_plan)
    return row | _checkpointed(program, cluster, setting, memory, headroom)


def _too_small(program: Program, cluster: Cluster, setting: Setting, memory: int | None, headroom: float) -> str:
    """Why no plan of any kind fits, where what is held of parameters alone says so; else nothing."""
    from meshwright.plan.units import show_bytes
    from meshwright.planner.infeasible.estimate import training_state_bytes, usable_bytes

    need, have = training_state_bytes(program, setting), usable_bytes(cluster, memory, headroom)
    if need <= have:
        return ""
    what = "it has" if cluster.device_count == 1 else "together they have"
    return f"weights, gradients and optimizer state take {show_bytes(need)}, {what} {show_bytes(have)}"


def _further(args: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    """What to do with the rows: the fastest of those that fit is planned as an example."""
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return "more GPUs: --counts 2x8,4x8; less to hold: --precision bf16, --optimizer sgd, a smaller --global-batch"
    best = max(fitting, key=lambda row: row["samples_per_second"])
    words = ["meshwright", "plan", args.model]
    for option in ("set", "allow"):
        words += [word for value in getattr(args, option) for word in (f"--{option}", value)]
    given = vars(args) | {
        "global_batch": best["global_batch"] if len({row["global_batch"] for row in rows}) > 1 else args.global_batch
    }
    for option in ("seq", "global_batch", "memory", "precision"):
        if (value := given[option]) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    words += ["--optimizer", args.optimizer] if args.optimizer != "adamw" else []
    return (
        "these are recipes people know; the planner mixes them, which is often faster and may fit where they do not: "
        f"{shlex.join([*words, '--cluster', best['cluster']])}"
    )


def _checkpointed(
    program: Program, cluster: Cluster, setting: Setting, memory: int | None, headroom: float
) -> dict[str, Any]:
    """Where the batch is not divided by the devices, and FSDP by samples alone not possible: any plan that recomputes
    all activations. Else the recipes have been tried."""
    from meshwright.errors import PlanError
    from meshwright.plan.units import show_bytes
    from meshwright.planner.plan import feasible_plan
    from meshwright.planner.request import PlanRequest

    pins = ("recompute=full",)
    limit = cluster.devices[0].limit_bytes(memory, headroom)
    why = f"not in {show_bytes(limit)} of each, not even with full checkpointing; a searched plan may"
    refused = {"fits": False, "undecided": True, "why": why}
    if program.batch % cluster.device_count == 0:
        return refused
    request = PlanRequest(program, cluster, memory_bytes=memory, setting=setting, pins=pins, headroom=headroom)
    try:
        plan = feasible_plan(request)
    except PlanError:
        return refused
    found, name = plan.predicted, "best + activation checkpointing"
    return _figures(program, name, found.step_s, found.peak_bytes, plan.microbatches, pins)


def _figures(
    program: Program, recipe: str, step_s: Any, peak_bytes: Any, microbatches: int | None, pins: tuple[str, ...]
) -> dict[str, Any]:
    """pins: with which `plan` gives it."""
    shapes = [value.type.at(program.batch) for value in program.inputs]
    texts = [prod(one.sizes) for one in shapes if one.dtype in ("int64", "int32") and len(one.sizes) == 2]
    return {
        "fits": True,
        "recipe": recipe,
        "microbatches": microbatches,
        "pins": list(pins),
        "step_seconds": step_s,
        "peak_bytes": peak_bytes,
        "tokens_per_second": texts[0] / step_s if texts else None,
        "samples_per_second": program.batch / step_s,
    }


def _line(row: dict[str, Any]) -> str:
    from meshwright.pins.spelling import pin_options
    from meshwright.plan.units import show_bytes, show_seconds

    if not row["fits"]:
        return f"{row['cluster']:<12} {'no recipe fits' if row['undecided'] else 'cannot fit'}: {row['why']}"
    step, held = show_seconds(row["step_seconds"]), f"{'~' * row['rough']}{show_bytes(row['peak_bytes'])}"
    unit = "samples" if row["tokens_per_second"] is None else "tokens"
    speed, batch = row[f"{unit}_per_second"], row["global_batch"]
    cut = f"batch {batch} in {row['microbatches']}"
    uneven = "" if row["even"] else f" (slow: {batch} samples are not shared evenly, see --global-batch)"
    line = (
        f"{row['cluster']:<12} fits  {speed:>12,.0f} {unit}/s  {step:>8}  {held:>9}  {cut:<13} {row['recipe']}"
        f"{uneven}{' (host-bound)' if row['host_bound'] else ''}: {pin_options(row['pins'])}"
    )
    return line
