"""What `train` may be told, checked before anything is planned, started or written."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import RunError, counted

if TYPE_CHECKING:
    from meshwright.plan import Plan


MUST, AUTO = "must", "auto"
"""What --resume says: there must be a checkpoint; the run goes on where there is one."""
STEPS = 40
"""Of `train`, unless told: enough to see a loss fall."""
RANK_BYTES = 256 << 20
"""What a process that has imported torch has for itself alone; 260 MiB were measured of each of 4."""


def check_options(args: argparse.Namespace) -> None:
    """What they say by themselves."""
    numbers = {"--nproc": args.nproc, "--steps": args.steps, "--global-batch": args.global_batch, "--every": args.every}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise RunError(f"{name} {value}", "at least 1", "give a larger number")
    if args.keep < 0:
        raise RunError(f"--keep {args.keep}", "a number of checkpoints, or 0 to keep all", "correct it")
    if args.lr is not None and not 0 < args.lr < float("inf"):
        raise RunError(f"--lr {args.lr}", "a positive, finite number", "correct it")
    if args.timeout is not None and not args.timeout > 0:
        raise RunError(f"--timeout {args.timeout}", "a positive number of seconds", "correct it")
    if args.max_restarts < 0:
        raise RunError(f"--max-restarts {args.max_restarts}", "0 or more", "correct it")
    for name in ("every", "resume", "max_restarts"):
        if getattr(args, name) and not args.checkpoint_dir:
            raise RunError(f"--{name.replace('_', '-')} without --checkpoint-dir", "a folder to save to", "name one")


def check_room(processes: int) -> None:
    """That this machine's memory holds so many processes, whatever they train."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = max(1, total // RANK_BYTES)
    if processes > most:
        from meshwright.plan.units import show_bytes

        raise RunError(
            f"{processes:,} processes on one machine with {show_bytes(total)} of memory",
            f"at most {most:,}: each takes {show_bytes(RANK_BYTES)} before it holds a model",
            "start fewer, or plan for several hosts and start them with `meshwright launch`",
        )


def check_joined(args: argparse.Namespace) -> None:
    """Of a rank that another launcher started: what ours alone can do."""
    if args.max_restarts:
        raise RunError(
            f"--max-restarts {args.max_restarts} for ranks of another launcher",
            "restarts by who starts the ranks",
            "drop it; with torchrun --max-restarts, pass --resume auto",
        )


def check_against(args: argparse.Namespace, plan: Plan, world: int | None) -> None:
    """Against a plan that is made. world: how many processes there are to be, where that has been said."""
    if world not in (None, plan.world_size):
        raise RunError(
            f"{counted(world or 0, 'process')} for a plan of {plan.world_size}",
            "as many as the plan has",
            f"pass --nproc {plan.world_size}, or plan again for {world}",
        )
    if args.cluster:
        raise RunError(f"--cluster {args.cluster} with a plan that is made", "a cluster when planning", "drop it")
    if args.pin:
        raise RunError(f"--pin {args.pin[0]} with a plan that is made", "pins when planning", "plan again with the pin")
    if args.memory:
        raise RunError(
            f"--memory {args.memory} with a plan that is made", "a limit when planning", "plan again with it"
        )
    if args.global_batch not in (None, plan.batch):
        raise RunError(
            f"--global-batch {args.global_batch} with a plan for {plan.batch}", f"{plan.batch}", "plan again"
        )


def check_places(args: argparse.Namespace) -> None:
    """That files are there, and others can be written."""
    if args.json and args.json != "-" and os.path.isdir(args.json):
        raise RunError(f"--json {args.json} is a folder", "a file to write", "name a file in it")
    if args.json and args.json != "-" and not os.path.isdir(Path(args.json).parent):
        raise RunError(
            f"--json {args.json}: its folder does not exist", "a path that can be written", "make the folder"
        )
    if args.data and not os.path.isfile(args.data):
        raise RunError(f"--data {args.data} is no file", "a text file", "check the path")
    if not args.checkpoint_dir:
        return
    from meshwright.runtime.state.folder import complete_ones, latest

    if args.resume == MUST:
        complete_ones(args.checkpoint_dir)  # refused here, before anything is planned or a folder made
        return
    if not args.resume and (found := latest(args.checkpoint_dir)):
        raise RunError(
            f"{found} is there already", "an empty --checkpoint-dir", "pass --resume, or name another folder"
        )
    _check_folder(Path(args.checkpoint_dir))


def resumes(args: argparse.Namespace) -> bool:
    """Whether the run goes on from a checkpoint: asked for, or asked for where there is one."""
    from meshwright.runtime.state.folder import latest

    return args.resume == MUST or (args.resume == AUTO and latest(args.checkpoint_dir) is not None)


def _check_folder(folder: Path) -> None:
    """That checkpoints can be written: a run would be lost otherwise."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(
            f"--checkpoint-dir {folder} cannot be written: {error.strerror}", "a folder to save to", "name another"
        ) from error
