"""Fuzz every file and text that meshwright reads: mutants of good ones are read or refused, and nothing else.

    python bench/fuzz.py                    # 100,000 mutants of each kind
    python bench/fuzz.py --mutants 3000 --kinds plan,cluster

A fault is a traceback that is not ours, a mutant that takes over 5 CPU seconds, or one that needs over 1 GiB. Mutants
are numbered: `--first 4711 --mutants 1` makes one again. Each kind runs in a process of its own: a crash is a fault.
Writes JSON to out/fuzz.json.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_mutate import mutant

MUTANTS = 100_000
SECONDS, BYTES = 5.0, 1 << 30
Read = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """Something that is read: good examples of it, and who reads it."""

    name: str
    seeds: tuple[bytes, ...]
    read: Read


@dataclass(slots=True)
class Found:
    """What became of mutants of one kind. faults: by what went wrong, how often; first: the number of the first."""

    kind: str
    mutants: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def fault(self, what: str, number: int) -> None:
        self.faults[what] += 1
        self.first.setdefault(what, number)

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {self.mutants:,} mutants, {self.accepted:,} read, {self.refused:,} refused, "
            f"slowest {self.slowest_s:.2f} s, {self.faults.total()} faults"
        ]
        return "\n".join(lines + [f"  {n:>6} x {what} (first: {self.first[what]})" for what, n in self.faults.items()])


class SlowError(Exception):
    """A mutant takes too long."""


def fuzz(kind: Kind, mutants: int, seed: int = 0, first: int = 0) -> Found:
    """In a process of its own; where that dies, the mutant is named and the rest goes on."""
    found, number = Found(kind.name), first
    while number < first + mutants:
        part, number = _in_child(kind, number, first + mutants, seed)
        found.mutants += part.mutants
        found.accepted += part.accepted
        found.refused += part.refused
        found.slowest_s = max(found.slowest_s, part.slowest_s)
        for what, count in part.faults.items():
            found.faults[what] += count
            found.first.setdefault(what, part.first[what])
    return found


def _in_child(kind: Kind, first: int, end: int, seed: int) -> tuple[Found, int]:
    """What was found, and where to go on."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.write_bytes(pickle.dumps((Found(kind.name), first)))
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the copy does not need
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _run(kind, first, end, seed, notes)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        found, number = pickle.loads(notes.read_bytes())  # our own child's
        if os.waitstatus_to_exitcode(status) != 0:
            found.mutants += 1
            found.fault(f"the process ended with {os.waitstatus_to_exitcode(status)}", number)
            number += 1
    return found, number


def _run(kind: Kind, first: int, end: int, seed: int, notes: Path) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _slow)
    found = Found(kind.name)
    for number in range(first, end):
        text = mutant(kind.seeds, Random(f"{kind.name} {seed} {number}"))
        notes.write_bytes(pickle.dumps((found, number)))
        _try(kind, text, number, found)
    notes.write_bytes(pickle.dumps((found, end)))


def _slow(number: int, frame: object) -> None:
    raise SlowError


def _try(kind: Kind, text: bytes, number: int, found: Found) -> None:
    from meshwright.errors import MeshwrightError

    began = time.process_time()
    found.mutants += 1
    signal.setitimer(signal.ITIMER_REAL, 12 * SECONDS)
    try:
        kind.read(text)
        found.accepted += 1
    except MeshwrightError:
        found.refused += 1
    except SlowError:
        found.fault(f"over {SECONDS} s", number)
    except BaseException as error:
        found.fault(_described(error), number)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_s = time.process_time() - began
    found.slowest_s = max(found.slowest_s, took_s)
    if took_s > SECONDS:
        found.fault(f"over {SECONDS} s", number)


def _described(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "meshwright/" in frame.filename]
    place = f"{frames[-1].filename.rpartition('meshwright/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}"


def kinds(folder: Path) -> Iterator[Kind]:
    """Everything that is read, with examples of it; each is made when it is asked for. folder: for files."""
    from fuzz_kinds import make_kinds

    return (Kind(name, tuple(seeds), read) for name, seeds, read in make_kinds(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="some of them, with commas")
    parser.add_argument("--show", action="store_true", help="print the mutants")
    args = parser.parse_args(arguments)
    every: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds(Path(folder)):
            if args.kinds and kind.name not in args.kinds.split(","):
                continue
            if args.show:
                for number in range(args.first, args.first + args.mutants):
                    print(mutant(kind.seeds, Random(f"{kind.name} {args.seed} {number}"))[:4000])
            found = fuzz(kind, args.mutants, args.seed, args.first)
            print(found, flush=True)
            every.append({"kind": kind.name, "mutants": found.mutants, "read": found.accepted,
                          "refused": found.refused, "slowest_s": found.slowest_s,
                          "faults": dict(found.faults), "first": found.first})  # fmt: skip
    Path("out").mkdir(exist_ok=True)
    Path("out/fuzz.json").write_text(json.dumps(every, indent=1) + "\n")
    return 1 if any(one["faults"] for one in every) else 0


if __name__ == "__main__":
    sys.exit(main())
