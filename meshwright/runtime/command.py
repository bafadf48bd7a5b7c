"""`meshwright train`: train a model under a plan, on local processes or inside a torchrun that is already there."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.models.arguments import add_model_arguments, reference_of

BATCH = 8

if TYPE_CHECKING:
    from meshwright.plan import Plan


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("train", help="train a model under a plan on local processes")
    add_model_arguments(parser)
    parser.add_argument("--plan", default="auto", help="a plan file, or auto (default) to plan now")
    parser.add_argument("--nproc", type=int, default=2, metavar="N", help="local processes (default 2)")
    parser.add_argument("--global-batch", type=int, metavar="N", help="samples per step (default 8, or the plan's)")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="optimizer steps (default 40)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 1e-3)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data (default 0)")
    parser.add_argument("--pin", action="append", default=[], help="a pin, when planning now; see `meshwright plan -h`")
    parser.add_argument("--json", metavar="FILE", help="write losses and plan as JSON; - for standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.errors import RunError
    from meshwright.runtime.launch import launch
    from meshwright.runtime.worker import Job, train

    for name, value in (("--nproc", args.nproc), ("--steps", args.steps), ("--global-batch", args.global_batch)):
        if value is not None and value < 1:
            raise RunError(f"{name} {value}", "at least 1", "give a larger number")
    if not 0 < args.lr < float("inf"):
        raise RunError(f"--lr {args.lr}", "a positive, finite number", "correct it")
    if args.json and args.json != "-" and not Path(args.json).parent.is_dir():
        raise RunError(
            f"--json {args.json}: its folder does not exist", "a path that can be written", "make the folder"
        )
    plan = _plan(args)
    with tempfile.TemporaryDirectory() as folder:
        saved, result = Path(folder) / "plan.json", Path(folder) / "losses.json"
        plan.save(saved)
        job = Job(str(saved), args.steps, args.lr, args.seed, str(result), args.json == "-")
        if "RANK" in os.environ:
            losses = train(job)
        else:
            launch("meshwright.runtime.worker", job.arguments(), plan.world_size)
            losses = json.loads(result.read_text())
    _report(args, plan, losses)
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from meshwright.capture import capture
    from meshwright.cluster import load_cluster
    from meshwright.errors import RunError
    from meshwright.plan import Plan
    from meshwright.price.check import check_plan
    from meshwright.solve.plan import make_plan

    reference = reference_of(args)
    world = int(os.environ.get("WORLD_SIZE", args.nproc))
    if args.plan == "auto":
        program = capture(*reference.meta(args.global_batch or BATCH))
        return make_plan(program, load_cluster(f"local:{world}"), model=str(reference), pins=args.pin)
    plan = Plan.load(args.plan)
    if plan.world_size != world:
        raise RunError(
            f"{world} processes for a plan of {plan.world_size}",
            "as many as the plan has",
            f"pass --nproc {plan.world_size}, or plan again for {world}",
        )
    if args.pin:
        raise RunError(f"--pin {args.pin[0]} with a plan that is made", "pins when planning", "plan again with the pin")
    if args.global_batch not in (None, plan.batch):
        raise RunError(
            f"--global-batch {args.global_batch} with a plan for {plan.batch}", f"{plan.batch}", "plan again"
        )
    check_plan(plan, capture(*reference.meta(plan.batch)))
    return plan


def _report(args: argparse.Namespace, plan: Plan, losses: list[float]) -> None:
    if args.json:
        text = json.dumps({"losses": losses, "plan": json.loads(plan.to_json())})
        if args.json == "-":
            print(text)
        else:
            Path(args.json).write_text(text + "\n", encoding="utf-8")
    if args.json != "-":
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps on {plan.world_size} processes")
