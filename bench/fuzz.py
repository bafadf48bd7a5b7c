"""Fuzz every file and text that meshwright reads: mutants of good ones are read or refused, and nothing else.

    python bench/fuzz.py                    # 100,000 mutants of each kind
    python bench/fuzz.py --mutants 3000 --kinds plan,cluster
    python bench/fuzz.py --jobs 15          # in parts, on so many processes

A fault is a traceback that is not ours, a mutant that takes over 5 CPU seconds, or one that needs over 1 GiB. Mutants
are numbered: `--first 4711 --mutants 1` makes one again. Each part runs in a process of its own: a crash is a fault.
Faults are printed when their part is over. Writes JSON to out/fuzz.json, or where `-o` says, as the parts come in.
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
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_mutate import mutant

MUTANTS, PART = 100_000, 1000
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

    def add(self, part: Found) -> None:
        self.mutants += part.mutants
        self.accepted += part.accepted
        self.refused += part.refused
        self.slowest_s = max(self.slowest_s, part.slowest_s)
        for what, count in part.faults.items():
            self.faults[what] += count
            self.first.setdefault(what, part.first[what])

    def as_json(self) -> dict[str, Any]:
        counts = {"kind": self.kind, "mutants": self.mutants, "read": self.accepted, "refused": self.refused}
        return counts | {"slowest_s": self.slowest_s, "faults": dict(self.faults), "first": self.first}

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
        found.add(part)
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


@cache
def _own_kinds() -> dict[str, Kind]:
    """Of this process, with files of its own."""
    return {kind.name: kind for kind in kinds(Path(tempfile.mkdtemp(prefix="fuzz-")))}


def _part(part: tuple[str, int, int, int, float]) -> Found:
    """Of one kind, so many mutants from a first one on; none once it is too late."""
    name, first, mutants, seed, until_s = part
    return fuzz(_own_kinds()[name], mutants if time.monotonic() < until_s else 0, seed, first)


def _forget_files() -> None:
    _own_kinds.cache_clear()


def _found(parts: Sequence[tuple[str, int, int, int, float]], jobs: int) -> Iterator[Found]:
    """As they are over. What all of them import is imported before the processes part."""
    for kind in _own_kinds().values():
        for seed in kind.seeds:
            _try(kind, seed, 0, Found(kind.name))
    if jobs == 1:
        yield from map(_part, parts)
        return
    with get_context("fork").Pool(jobs, _forget_files) as pool:
        yield from pool.imap_unordered(_part, parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="some of them, with commas")
    parser.add_argument("--show", action="store_true", help="print the mutants")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other part after so long")
    parser.add_argument("-o", "--out", default="out/fuzz.json")
    args = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a mutant of a model's name is looked for on no network
    until_s, last = time.monotonic() + args.seconds, args.first + args.mutants
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        names = args.kinds.split(",") if args.kinds else list(_own_kinds())
        for name in names if args.show else ():
            for number in range(args.first, last):
                print(mutant(_own_kinds()[name].seeds, Random(f"{name} {args.seed} {number}"))[:4000])
        parts = [
            (name, first, min(PART, last - first), args.seed, until_s)
            for first in range(args.first, last, PART)
            for name in names
        ]
        whole = {name: Found(name) for name in names}
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        for part in _found(parts, args.jobs):
            whole[part.kind].add(part)
            if part.faults:
                print(part, flush=True)
            Path(args.out).write_text(json.dumps([found.as_json() for found in whole.values()], indent=1) + "\n")
    print(*whole.values(), sep="\n", flush=True)
    return 1 if any(found.faults for found in whole.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
