"""The trial of one entry, in a process of its own.

The row is written to a file after each phase, so that whatever kills the process is told with its phase.
"""

from __future__ import annotations

import json
import os
import resource
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.zoo.compare import difference
from bench.zoo.entry import Case, Entry
from bench.zoo.rows import started
from bench.zoo.server import Job, Server
from bench.zoo.steps import RankError, Trace, kind_of
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import CaptureError, MeshwrightError, PlanError
from meshwright.plan.plan import Plan
from meshwright.planner.plan import make_plan

EIGHT, TWO = "dgx-h100:1", "local:2"

Row = dict[str, Any]
"""name, source, outcome, phase, warned, cpu_s, ops, segments, free, pinned (what was run), text (see `rows`)."""


@dataclass(frozen=True, slots=True)
class Options:
    """every_pin: run all pins that can be planned. reuse: ranks take the trial's capture. parts: `plan`, for 8 H100;
    `run`, on two ranks."""

    every_pin: bool = False
    reuse: bool = False
    parts: tuple[str, ...] = ("plan", "run")
    double: bool = False


class UnequalError(Exception):
    """Not what the reference computes."""


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Trial:
    """The phases of one entry's trial, in order."""

    def __init__(self, entry: Entry, path: Path, options: Options) -> None:
        self.entry, self.path, self.options = replace(entry, double=options.double), path, options
        self.server = Server()
        self.reused: Program | None = None
        self.wanted: Trace | None = None
        self.row: Row = started(entry.name)

    def run(self) -> None:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self._parts()
            self.row["warned"] = sorted({str(w.message) for w in caught if "meshwright" in w.category.__module__})
            self._end("equal", self._note())
        except UnequalError as error:
            self._end("WRONG", str(error))
        except RankError as error:
            self._end(error.kind, str(error))
        except MeshwrightError as error:
            self._end(kind_of(error), f"{type(error).__name__}: {error}")
        except ModuleNotFoundError as error:
            self._end("not installed" if self.row["phase"] == "build" else "traceback", str(error))
        except BaseException:
            self._end("traceback", traceback.format_exc())

    def _parts(self) -> None:
        """What is run comes first: planning for 8 H100 may take too long, and then is told so alone."""
        program = self._traced()
        if "run" in self.options.parts:
            self._in_single_or_double(program)
            self.row["parts"] = {"run": {"outcome": "equal", "phase": self.row["phase"], "text": self._note()}}
        if "plan" in self.options.parts:
            self._phase("plan of 8", lambda: self._plan(program, EIGHT))

    def _note(self) -> str:
        return "; ".join(self.row[key] for key in ("allowed", "rounding") if key in self.row)

    def _in_single_or_double(self, program: Program) -> None:
        """What differs in float32 is compared again in float64, far more closely: rounding is too small there."""
        try:
            self._runs(program)
        except UnequalError as error:
            if self.entry.double:
                raise
            self.entry = replace(self.entry, double=True)
            self._runs(self._traced())
            self.row["rounding"] = f"equal in float64; in float32 rounding grows: {error}"

    def _traced(self) -> Program:
        case = self._phase("build", self.entry.made)
        self.wanted = None
        if case.reference != "alone" and "run" in self.options.parts:
            self.wanted = self._phase("eager", lambda: self._steps(None, 1)[0])
        program = self._phase("capture", lambda: self._captured(case))
        self.row |= {"ops": sum(1 for _ in program.ops()), "segments": len(program.segments)}
        self.reused = program if self.options.reuse else None
        return program

    def _captured(self, case: Case) -> Program:
        """Lines that are refused until they are allowed are, with the entry's answer."""
        allow: list[str] = []
        while True:
            try:
                return capture(case.model, case.batches[0], case.loss, allow=allow)
            except CaptureError as error:
                line = error.todo.partition("allow='")[2].partition("=")[0]
                if not line or not self.entry.answer or len(allow) > 3:
                    raise
                allow.append(f"{line}={self.entry.answer}")
                self.row["allowed"] = f"with allow={', '.join(allow)}"

    def _runs(self, program: Program) -> None:
        wanted = self.wanted
        free = self._phase("plan of 2", lambda: self._plan(program, TWO))
        if wanted is None:
            alone = self._plan(program, "local:1")
            wanted = self._phase("alone", lambda: self._steps(alone, 1)[0])
        self.row["free"] = method_of(free)
        self._run("free", free, wanted)
        for pin, plan in self._phase("pinned plan", lambda: self._pinned(program)):
            self._run(pin, plan, wanted)
        for pin in self.entry.also:
            self._also(pin, program, wanted)

    def _pinned(self, program: Program) -> list[tuple[str, Plan]]:
        """The plan of the first pin that the planner accepts, or of all of them."""
        found, refused = [], []
        for pin in self.entry.pins:
            try:
                found.append((pin, self._plan(program, TWO, (pin,))))
            except PlanError as error:
                refused.append(error)
            if found and not self.options.every_pin:
                break
        if not found:
            raise refused[0]
        self.row["pinned"] = ", ".join(pin for pin, _ in found)
        return found

    def _also(self, pin: str, program: Program, wanted: Trace) -> None:
        """Under a pin that may be refused; what is planned must compute the same."""
        try:
            plan = self._phase(f"plan {pin}", lambda: self._plan(program, TWO, (pin,)))
            self._run(pin, plan, wanted)
            self.row["pinned"] += f", {pin}"
        except (MeshwrightError, RankError) as error:
            if (error.kind if isinstance(error, RankError) else kind_of(error)) != "refused":
                raise
            self.row["pinned"] += f"; {pin} refused"

    def _plan(self, program: Program, cluster: str, pins: tuple[str, ...] = ()) -> Plan:
        """What `mw.plan` makes of the model, without capturing it again."""
        settings = {"memory_bytes": None, "optimizer": self.entry.optimizer, "precision": "fp32"}
        return make_plan(program, load_cluster(cluster), pins=pins, **settings)

    def _steps(self, plan: Plan | None, ranks: int) -> list[Trace]:
        return self.server.run(Job(self.entry.name, self.entry.double, plan, self.reused), ranks)

    def _run(self, name: str, plan: Plan, wanted: Trace) -> None:
        def both() -> None:
            found = self._steps(plan, 2)
            if told := difference(wanted, found, double=self.entry.double):
                raise UnequalError(f"{name}: {told}")

        self._phase(f"run {name}", both)

    def _phase(self, name: str, work: Callable[[], Any]) -> Any:
        self.row["phase"] = name
        self._write()
        start_s = cpu_s()
        try:
            return work()
        finally:
            self.row["cpu_s"][name] = round(cpu_s() - start_s, 2)

    def _end(self, outcome: str, text: str = "") -> None:
        if outcome in ("traceback", "abort") and self.row["phase"] in ("build", "eager"):
            outcome = "broken"  # the entry itself: plain PyTorch does not run it
        self.row |= {"outcome": outcome, "text": text}
        self._write()

    def _write(self) -> None:
        self.path.with_suffix(".part").write_text(json.dumps(self.row), encoding="utf-8")
        os.replace(self.path.with_suffix(".part"), self.path)


def method_of(plan: Plan) -> str:
    """The line of a plan's summary that says what it does."""
    return str(plan).splitlines()[1].strip()
