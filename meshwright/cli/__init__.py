"""The command line: a thin face over the public API. A command's module is imported only when it is called.

Exit codes: 0 done; 1 a check failed (`doctor`, `selftest`) or nothing fits (`fits`); 2 refused, with what was given,
what was expected and what to do; 130 stopped by Ctrl-C (`plan` has then given its best so far); 141 nobody reads on.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from meshwright import __version__
from meshwright.cli.parser import Parser
from meshwright.errors import MeshwrightError, PlanError

COMMANDS = {
    "plan": ("meshwright.cli.plan", "find the fastest plan that fits, and show what others would cost"),
    "price": ("meshwright.cli.price", "show what a given configuration costs, without search"),
    "fits": ("meshwright.cli.fits", "say on which GPUs a model can be trained, by which recipe, how fast"),
    "explain": ("meshwright.cli.explain", "explain a plan, a part of it, or how two plans differ"),
    "compare": (
        "meshwright.cli.compare",
        "compare two plans, or a plan with a profiler trace of its run",
    ),
    "simulate": ("meshwright.cli.simulate", "play a plan with predicted durations and show where time goes"),
    "code": ("meshwright.report.code_command", "print the Python that a plan makes each rank run"),
    "train": ("meshwright.runtime.job.command", "train a model under a plan on local processes"),
    "launch": ("meshwright.runtime.job.launch_command", "write the script that starts a plan on its hosts"),
    "profile": ("meshwright.cli.profile", "show what a model, or a plan, computes and needs, by layer"),
    "frontier": ("meshwright.cli.frontier", "show the whole time-memory curve and the known ways on it"),
    "cluster": ("meshwright.cluster.command", "list, show or detect clusters"),
    "calibrate": ("meshwright.cluster.calibrate.command", "measure this machine's device and write its profile"),
    "rules": ("meshwright.rules.command", "list the sharding rules"),
    "solve": ("meshwright.select.command", "solve a selection problem from a file"),
    "doctor": ("meshwright.cli.doctor", "say what is installed, what will work here and what will not"),
    "selftest": ("meshwright.cli.selftest", "under torchrun: collectives, a step against one process, the clock"),
    "completion": ("meshwright.cli.completion", "print a completion script for bash, zsh or fish"),
}
EXITS = "exit codes: 0 done, 1 a check failed, 2 refused, 130 stopped by Ctrl-C, 141 nobody reads on"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(arguments)
    except MeshwrightError as error:
        print(f"meshwright: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stopped:
        print(f"meshwright: interrupted{f': {stopped}' if str(stopped) else ''}", file=sys.stderr)
        return 130
    finally:
        if argv is None:
            gc.freeze()  # nothing is left but to end: a last look for garbage took as long as a small search
            if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # which Ctrl-C does at once


def parser_for(called: str | None) -> argparse.ArgumentParser:
    """With all options of the called command, and the names of the others."""
    parser = Parser(
        prog="meshwright",
        description="Finds the fastest training plan that fits, explains it, and runs it.",
        epilog=EXITS,
    )
    parser.add_argument("--version", action="version", version=f"meshwright {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary)
        if name == called:
            import_module(module).add_arguments(command)
    return parser


def _main(arguments: list[str]) -> int:
    called = next((word for word in arguments if not word.startswith("-")), None)
    parser = parser_for(called)
    parsed, more = parser.parse_known_args(arguments)
    if more and ("names" not in parsed or any(word.startswith("-") for word in more)):
        Parser(prog=f"meshwright {called}").error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # argparse takes names only where they stand together
        parsed.names = [*parsed.names, *more]
    for name in ("plan", "against"):  # before torch is imported
        _check_readable(getattr(parsed, name, None))
    parsed.parsers = lambda: {name: parser_for(name) for name in COMMANDS}
    return int(parsed.run(parsed))


def _check_readable(path: str | None) -> None:
    """A plan file that is not there is refused at once; auto: a plan is made."""
    if path in (None, "auto"):
        return
    try:
        with open(str(path), "rb"):
            pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PlanError(f"{path} cannot be read: {why}", "a plan file", "check the path") from error


if __name__ == "__main__":
    sys.exit(main())
