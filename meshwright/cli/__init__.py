"""The command line: a thin face over the public API. A command's module is imported only when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from meshwright.errors import MeshwrightError

COMMANDS = {
    "profile": ("meshwright.profile.command", "show what a model computes and needs, by segment"),
    "plan": ("meshwright.cli.plan", "find the fastest plan that fits, and show what others would cost"),
    "price": ("meshwright.cli.price", "show what a given configuration costs, without search"),
    "explain": ("meshwright.cli.explain", "explain a plan, a part of it, or how two plans differ"),
    "compare": ("meshwright.cli.compare", "show two plans beside each other"),
    "frontier": ("meshwright.cli.frontier", "show the whole time-memory curve and the known ways on it"),
    "code": ("meshwright.generate.command", "print the Python that a plan makes each rank run"),
    "simulate": ("meshwright.cli.simulate", "play a plan with predicted durations and show where time goes"),
    "train": ("meshwright.runtime.job.command", "train a model under a plan on local processes"),
    "launch": ("meshwright.runtime.job.launch_command", "write the script that starts a plan on its hosts"),
    "solve": ("meshwright.select.command", "solve a selection problem from a file"),
    "calibrate": ("meshwright.cluster.calibrate.command", "measure this machine's device and write its profile"),
    "cluster": ("meshwright.cluster.command", "list, show or detect clusters"),
    "rules": ("meshwright.rules.command", "list the sharding rules"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="meshwright", description="Finds the fastest training plan that fits, explains it, and runs it."
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    called = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        if name == called:
            import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    parsed, more = parser.parse_known_args(arguments)
    if more and ("names" not in parsed or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # argparse takes names only where they stand together
        parsed.names = [*parsed.names, *more]
    try:
        return int(parsed.run(parsed))
    except MeshwrightError as error:
        print(f"meshwright: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("meshwright: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
