"""`meshwright launch`: write the script that starts a plan on its hosts."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, NoReturn

from meshwright.errors import RunError
from meshwright.runtime.job.options import STEPS

if TYPE_CHECKING:
    from meshwright.plan import Plan

KINDS = ("torchrun", "slurm", "kubernetes", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", help="a plan file written by `meshwright plan -o`")
    add("--print", dest="kind", choices=KINDS, default=KINDS[0], help=f"{', '.join(KINDS)} (default {KINDS[0]})")
    add("--train", default="", metavar="WORDS", help="options for `train`, as one word: --train='--steps 200'")
    add("--steps", type=int, metavar="N", help=f"optimizer steps in all, as of `train` (its default: {STEPS})")
    add("--max-restarts", type=int, default=0, metavar="N", help="start all ranks again after a fault, so many times")
    add("--script", default="", metavar="WORDS", help="start this in place of `train`: --script='mine.py --lr 1e-4'")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.plan import Plan
    from meshwright.runtime.job.scripts import SCRIPTS, run_of

    plan = Plan.load(args.plan)
    script = _words("--script", args.script)
    if script and (args.train or args.kind == "ray"):
        other = "--print ray" if args.kind == "ray" else f"--train={args.train}"
        raise RunError(f"--script and {other}", "one of them: a script is started by torchrun itself", "drop one")
    if args.steps is not None:
        if script or "--steps" in _words("--train", args.train):
            other = "--script" if script else f"--train={args.train}"
            raise RunError(f"--steps {args.steps} and {other}", "one of them", "drop one")
        args.train = f"{args.train} --steps {args.steps}".strip()
    if args.max_restarts < 0 or (args.max_restarts and args.kind == "ray"):
        expected = "0 or more" if args.max_restarts < 0 else "restarts by Ray itself"
        raise RunError(f"--max-restarts {args.max_restarts} --print {args.kind}", expected, "correct it")
    extra = () if script else _options(args.train, plan, args.kind == "slurm" or args.max_restarts > 0)
    if not script and "--steps" not in extra:
        print(f"meshwright: this trains {STEPS} steps; --steps N for another number", file=sys.stderr)
    print(SCRIPTS[args.kind](run_of(plan, args.plan, extra, script, args.max_restarts)), end="")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RunError(f"--train: {message}", "options of `train`", "see `meshwright train -h`")


def _options(text: str, plan: Plan, resumes: bool) -> tuple[str, ...]:
    """The words, refused where `train` would refuse them; what is on the hosts' disks is looked at there. resumes: it
    is started again where it ended: without words for that it saves and goes on."""
    from meshwright.runtime.job.command import add_options
    from meshwright.runtime.job.options import check_against, check_joined, check_options

    words = _words("--train", text)
    parser = _Parser(add_help=False, allow_abbrev=True)
    add_options(parser)
    found = parser.parse_args(words)
    if resumes and not found.checkpoint_dir:
        words += ("--checkpoint-dir", "run", *(() if found.every else ("--every", "100")))
        found = parser.parse_args(words)
    if found.plan != "auto":
        raise RunError(f"--train: --plan {found.plan}", "no plan but the one that is launched", "drop it")
    check_options(found)
    if found.max_restarts:
        n = found.max_restarts
        todo = f"give it to launch: meshwright launch ... --max-restarts {n}"
        raise RunError(f"--train: --max-restarts {n}", "restarts by torchrun, which starts these ranks", todo)
    check_joined(found)
    check_against(found, plan, found.nproc)
    return (*words, "--resume", "auto") if resumes and not found.resume else words


def _words(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise RunError(f"{option}={text}: {error}", "words as a shell reads them", "close the quotation") from error
