"""`meshwright train`: train a model under a plan, on local processes or inside a torchrun that is already there."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import MeshwrightError, RunError, counted
from meshwright.models.arguments import add_json, add_model_arguments, check_reference, reference_of, write_json
from meshwright.pins.check import check_pins
from meshwright.runtime.job.options import (
    AUTO,
    MUST,
    STEPS,
    check_against,
    check_joined,
    check_options,
    check_places,
    check_room,
    resumes,
)
from meshwright.runtime.job.tether import INTERRUPTED
from meshwright.sizes import parse_bytes

LOGGER = logging.getLogger("meshwright.job")

if TYPE_CHECKING:
    from meshwright.cluster import Cluster
    from meshwright.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All but the model's."""
    add = parser.add_argument
    add("--plan", default="auto", help="a plan file, or auto (default) to plan now")
    add("--nproc", type=int, metavar="N", help="local processes (default: the plan's, or 2)")
    add("--global-batch", type=int, metavar="N", help="samples per step (default 8, or the plan's)")
    add("--steps", type=int, default=STEPS, metavar="N", help=f"optimizer steps in all (default {STEPS})")
    add("--lr", type=float, help="learning rate (default 1e-3, or that of the run that is gone on with)")
    add("--seed", type=int, help="of the weights and the order of the data (default 0)")
    add("--data", metavar="FILE", help="a text to learn from; one comes with the package")
    add("--checkpoint-dir", metavar="DIR", help="where to save: at the end, on Ctrl-C, and as --every says")
    add("--every", type=int, metavar="N", help="save after every so many steps")
    add("--keep", type=int, default=3, metavar="N", help="remove all but the newest N checkpoints (default 3; 0: none)")
    add(
        "--resume",
        nargs="?",
        const=MUST,
        choices=(MUST, AUTO),
        metavar=AUTO,
        help="go on from the last complete, undamaged checkpoint in --checkpoint-dir; auto: if there is one",
    )
    add(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="where ranks are lost, go on without them, N times",
    )
    add("--trust", action="store_true", help="read a checkpoint of an older version, which may run anything")
    add("--go-on-at-nan", action="store_true", help="do not stop where the loss is not finite")
    add("--timeout", type=float, metavar="S", help="seconds a rank waits for others before it names them (default 600)")
    add(
        "--cluster",
        metavar="NAME",
        help="when planning now: a preset or TOML file (default: this machine, or, started"
        " on several hosts, what is measured there)",
    )
    add(
        "--precision",
        choices=("fp32", "bf16", "mixed", "fp16"),
        default="fp32",
        help="when planning now (default fp32)",
    )
    add("--memory", metavar="SIZE", help="limit per device, such as 20GiB, when planning now")
    add("--pin", action="append", default=[], help="a pin, when planning now; see `meshwright plan -h`")
    add_json(parser, "losses, speed, memory and plan")


def run(args: argparse.Namespace) -> int:
    from meshwright.runtime.job.launch import stoppable

    check_reference(args)
    parse_bytes(args.memory)
    check_pins(args.pin)
    if "RANK" in os.environ:
        return _join(args)
    with stoppable():
        return _start(args)


def _start(args: argparse.Namespace) -> int:
    """On local processes."""
    from meshwright.runtime.job.launch import FailedError, ToldError

    check_options(args)
    check_room(args.nproc or 1)
    check_places(args)
    plan = _plan(args, args.nproc, None)
    check_room(plan.world_size)
    try:
        if args.max_restarts:
            return _run_again(args, plan)
        return _report(args, plan, _run(args, plan))
    except ToldError:
        return 2
    except FailedError as error:
        raise _with_way_on(error, args.checkpoint_dir) from error


def _run_again(args: argparse.Namespace, full: Plan) -> int:
    """With the ranks that remain where some are lost, up to as often as was said; then with all of them again."""
    from meshwright.runtime.job.launch import FailedError
    from meshwright.runtime.job.restarts import Restarts

    left, args.global_batch = args.max_restarts, full.batch
    planned_here = args.plan == "auto" and not args.cluster
    make = (lambda world: _plan(args, world, None, say=False)) if planned_here else None
    restarts = Restarts(full, make, Path(args.checkpoint_dir))
    restarts.prepare()
    while True:
        restarts.begin()
        try:
            found = _run(args, restarts.plan, restarts.may_grow)
        except FailedError as error:
            if not left or not error.ranks:
                raise
            left -= 1
            plan, why = restarts.lose(len(error.ranks)), f"{error.given}; "
        else:
            if not found["left"]:
                return _report(args, restarts.plan, found)
            plan, why = restarts.grow(), ""
        args.resume = AUTO
        told = f"meshwright: {why}going on with {counted(plan.world_size, 'process')}"
        LOGGER.info("%sgoing on: %r", why, plan)
        print(told, file=sys.stderr, flush=True)


def _run(args: argparse.Namespace, plan: Plan, leave: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Once, on as many processes as the plan has: what rank 0 reports. left: the ranks ended because of leave()."""
    from meshwright.runtime.job.launch import launch
    from meshwright.runtime.job.worker import Job
    from meshwright.runtime.watch import default_timeout_s

    with tempfile.TemporaryDirectory() as folder:
        saved, result = Path(folder) / "plan.json", Path(folder) / "result.json"
        plan.save(saved)
        job = Job(str(saved), args.steps, args.lr, args.seed, str(result), args.json == "-", *_rest(args))
        left = False
        try:
            wait_s = args.timeout or default_timeout_s()
            left = launch("meshwright.runtime.job.worker", job.arguments(), plan.world_size, wait_s, leave)
        except KeyboardInterrupt:
            if not result.exists():
                raise
        if left and not result.exists():  # they were lost as they saved: the last checkpoint is what there is
            return {"left": True}
        found: dict[str, Any] = json.loads(result.read_text())
    return found | {"left": left and found["stopped"]}


def _with_way_on(error: RunError, folder: str | None) -> RunError:
    """A failure of ranks, and from where to go on: the newest complete checkpoint, if there is one."""
    from meshwright.runtime.state.folder import latest

    found = latest(folder) if folder else None
    if found is None:
        return error
    way = f"go on from {found}, the newest complete checkpoint, with --resume"
    return RunError(error.given, error.expected, f"{error.todo}; {way}")


def _join(args: argparse.Namespace) -> int:
    """A rank of somebody else's launcher: rank 0 plans, all run."""
    import torch
    import torch.distributed as dist

    from meshwright.plan import Plan
    from meshwright.runtime.fail import tell
    from meshwright.runtime.job.tether import end_with_parent
    from meshwright.runtime.job.worker import Job, train
    from meshwright.runtime.meet import join
    from meshwright.runtime.watch import default_timeout_s

    end_with_parent()
    try:
        check_options(args)
        check_joined(args)
        check_places(args)
        cluster = _measured(args)
        if not dist.is_initialized():
            join("nccl" if torch.cuda.is_available() else "gloo", args.timeout or default_timeout_s())
        made: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                made = [_plan(args, dist.get_world_size(), cluster).to_json()]
            except MeshwrightError as error:
                made = [error]
        dist.broadcast_object_list(made, src=0)
        if isinstance(made[0], MeshwrightError):
            raise made[0]
        plan = Plan.from_json(made[0])
        with tempfile.TemporaryDirectory() as folder:
            plan.save(Path(folder) / "plan.json")
            place = (str(Path(folder) / "plan.json"), args.steps, args.lr, args.seed, "")
            found = train(Job(*place, args.json == "-", *_rest(args)))
        if dist.get_rank() == 0:
            _report(args, plan, found)
        dist.barrier()
    except Exception as error:  # one message, whatever it was; torchrun ends the other ranks
        return tell(error)
    dist.destroy_process_group()
    return INTERRUPTED if found["stopped"] else 0


def _measured(args: argparse.Namespace) -> Cluster | None:
    """On rank 0 of a job on several hosts, what they and their links are, where a plan is to be made for them."""
    import torch.distributed as dist

    from meshwright.cluster.detect.lead import detect

    here, world = (os.environ.get(name, "1") for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if args.plan != "auto" or args.cluster or here == world or dist.is_initialized():
        return None
    return detect()


def _rest(args: argparse.Namespace) -> tuple[Any, ...]:
    rest = (args.checkpoint_dir, args.every, args.resume or "", args.data, args.go_on_at_nan, args.timeout, args.keep)
    return (*rest, args.trust)


def _plan(args: argparse.Namespace, world: int | None, measured: Cluster | None, say: bool = True) -> Plan:
    """The plan to run; `world`: how many processes there are to be, where that has been said. say: what it is at."""
    from dataclasses import replace
    from typing import cast

    from meshwright.capture import Precision, capture
    from meshwright.cluster import load_cluster
    from meshwright.plan import Plan
    from meshwright.planner.model_pins import check_names
    from meshwright.planner.plan import make_plan
    from meshwright.price.check import check_plan

    reference = reference_of(args)
    if args.plan == "auto":
        batch = args.global_batch or _saved_batch(args)
        tell = _say if say else LOGGER.info
        cluster = measured or load_cluster(args.cluster or f"local:{world or 2}")
        if world not in (None, cluster.device_count):
            raise RunError(
                f"{counted(world or 0, 'process')} for cluster {cluster.name} of "
                f"{counted(cluster.device_count, 'device')}",
                "one process for each device",
                f"start {cluster.device_count}, or name a cluster of {world}",
            )
        check_pins(args.pin, cluster, batch or reference.family.batch)
        tell(f"capturing {reference}")
        model, tensors, loss = reference.meta(batch)
        check_names(args.pin, model)
        program = capture(model, tensors, loss, precision=args.precision, allow=args.allow)
        layers, devices = counted(len(program.segments), "layer"), counted(cluster.device_count, "device")
        tell(f"searching plans of {layers} on {devices}")
        plan = make_plan(
            program,
            cluster,
            model=str(reference),
            precision=args.precision,
            memory_bytes=parse_bytes(args.memory),
            pins=args.pin,
        )
        LOGGER.info("planned for %s: %r", counted(cluster.device_count, "process"), plan)
        return plan
    plan = Plan.load(args.plan)
    check_against(args, plan, world)
    precision = cast(Precision, plan.precision)
    check_plan(plan, capture(*reference.meta(plan.batch), precision=precision, allow=plan.answers))
    return replace(plan, model=str(reference))  # what runs is what was named here


def _say(what: str) -> None:
    """Of what takes long before a run begins."""
    print(what, file=sys.stderr, flush=True)


def _saved_batch(args: argparse.Namespace) -> int | None:
    """The global batch of the run that is gone on with."""
    from meshwright.runtime.state.folder import summary_of

    if not resumes(args):
        return None
    batch: int = summary_of(args.checkpoint_dir, args.trust)["batch"]
    return batch


def _report(args: argparse.Namespace, plan: Plan, found: dict[str, Any]) -> int:
    losses = found["losses"]
    if args.json:
        figures = {key: found[key] for key in ("losses", "tokens_per_second", "peak_bytes", "step_s", "spikes")}
        text = json.dumps(figures | {"plan": json.loads(plan.to_json())})
        write_json(args.json, text)
    if args.json != "-":
        ran = f"{counted(len(losses), 'step')} on {counted(plan.world_size, 'process')}"
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {ran}")
        if found["saved"]:
            print(f"saved in {found['saved']}; go on with --resume")
    return INTERRUPTED if found["stopped"] else 0
