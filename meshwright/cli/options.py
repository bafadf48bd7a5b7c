"""What commands share: options with one meaning everywhere, and mistakes refused before torch is imported."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import ClusterError, ModelError, PlanError
from meshwright.models.family import BATCH

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.cluster import Cluster
    from meshwright.models.reference import Reference
    from meshwright.plan import Plan

PRECISIONS = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "mixed": "mixed",
    "bf16-mixed": "mixed",
    "fp16": "fp16",
    "float16": "fp16",
}
"""As people write them, and as plans have them."""
OPTIMIZERS = ("adamw", "momentum", "sgd")
MOST_PROCESSES = 8
SAMPLES = f"samples per step (default {BATCH}; of file.py:function the rows of its batch)"


def add_training(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--global-batch", type=int, metavar="N", help=SAMPLES)
    add("--memory", metavar="SIZE", help="limit per device, such as 20GiB; the device's own if absent")
    add("--optimizer", default="adamw", help=f"{', '.join(OPTIMIZERS)} (default adamw)")
    add_precision(parser)


def add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        metavar="P",
        help="mixed (bf16 compute, fp32 weights; default on GPUs that have bf16), bf16, "
        "fp16 (fp32 weights, loss scaling), or fp32 (default elsewhere)",
    )


def check_training(args: argparse.Namespace) -> Reference | None:
    """The model's name, sizes and words, by what can be known without torch, as its reference may be."""
    from meshwright.models.arguments import check_reference
    from meshwright.sizes import parse_bytes

    reference = check_reference(args)
    check_batch(args)
    parse_bytes(args.memory)
    check_words(args)
    return reference


def check_words(args: argparse.Namespace) -> None:
    """Of the optimizer and the precision."""
    if args.optimizer not in OPTIMIZERS:
        raise PlanError(f"optimizer {args.optimizer!r}", f"one of {', '.join(OPTIMIZERS)}", "name one of these")
    if args.precision is not None and args.precision not in PRECISIONS:
        raise ModelError(f"precision {args.precision!r}", ", ".join(PRECISIONS), "name one of these")


def add_plans_model(parser: argparse.ArgumentParser) -> None:
    """For plans of code that a plan file names and that is not run unless the user names it too."""
    help = "the plan's model, where it is a function of your own: file.py:function"
    parser.add_argument("--model", dest="of", metavar="REF", help=help)


def program_of_plan(plan: Plan, path: str, model: str | None) -> Program:
    """Captured again, and refused where it is not the plan's."""
    from meshwright.plan.origin import program_of
    from meshwright.price.check import check_plan

    program = program_of(plan, path, model)
    check_plan(plan, program)
    return program


def check_batch(args: argparse.Namespace) -> None:
    if args.global_batch is not None and args.global_batch < 1:
        raise ModelError(f"--global-batch {args.global_batch}", "at least 1", "give a larger batch")


def assumed_batch(samples: int) -> str:
    """A note where nobody gave the batch."""
    return (
        f"a global batch of {samples} is assumed; which plan is fastest depends on it: "
        "give the one you train with, such as --global-batch 64"
    )


def precision_for(args: argparse.Namespace, cluster: Cluster) -> str:
    """What was asked for; else bf16-mixed on GPUs that compute in it, fp32 elsewhere."""
    if args.precision is not None:
        return PRECISIONS[args.precision]
    return "mixed" if all(one.kind == "cuda" and one.has_units("bfloat16") for one in cluster.devices) else "fp32"


def cluster_for(name: str | None) -> Cluster:
    """The named one; else this machine."""
    from meshwright.cluster import load_cluster

    return load_cluster(name) if name else this_machine()


def this_machine() -> Cluster:
    """Its GPUs where they are of a kind we know, else processes on its cores."""
    from meshwright.cluster import load_cluster

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return load_cluster(f"local:{min(MOST_PROCESSES, cores)}")
    import torch

    count = torch.cuda.device_count()
    if not count:
        return load_cluster(f"local:{min(MOST_PROCESSES, cores)}")
    return gpus_named([torch.cuda.get_device_name(place) for place in range(count)])


def gpus_named(names: list[str]) -> Cluster:
    from meshwright.cluster import load_cluster
    from meshwright.cluster.detect.devices import known_name
    from meshwright.cluster.hosts import ALIASES

    found = {known_name(name) for name in names}
    short = [alias for alias, device in ALIASES.items() if device in found]
    if len(found) != 1 or not short:
        raise ClusterError(
            f"this machine has {', '.join(dict.fromkeys(names))}",
            "GPUs of one kind that is known by name",
            "measure them with `meshwright cluster detect`, then name the file: --cluster FILE.toml",
        )
    return load_cluster(f"{short[0]}:{len(names)}")
