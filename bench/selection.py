"""The selection engine against the published results of the ASPLOS / EuroSys 2025 contest, and beyond its files.

    python bench/selection.py                              all instances at their contest limits, method auto, seed 0
    python bench/selection.py --seeds 0 1 2 --instances N U
    python bench/selection.py --methods auto ilp beam mcmc --seconds 60
    python bench/selection.py --perturb 2                  random perturbations of the instances, against our own bound
    python bench/selection.py --folder out/problems        every problem file of a folder, such as the planner writes
    python bench/selection.py --models --methods auto ilp elimination    problems the planner makes of our own models
    python bench/selection.py --segment                    CPU milliseconds for a llama block on one and two axes
    python bench/selection.py --synthetic                  layered graphs, 10 s each; and a stand-in for a segment
    python bench/selection.py --wide --cpu --seconds 60    800 nodes with up to 1,000 options each, memory and none
    python bench/selection.py --wide --instances joined-memory-11 --seeds 0 1 2 --methods auto beam

Limits count wall time from before the file is read. On a machine busy with other work `--cpu` counts the CPU seconds of
the solving process instead, all threads added up; those of HiGHS beside it are reported. Every run has a process of its
own, so that peak memory is its own.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file would hide the standard library's `select` from all who need it

import argparse
import csv
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from meshwright.select import Problem

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SHARED = Path(os.environ.get("MESHWRIGHT_SHARED", ROOT.parent / "shared")) / "iopddl"
MARGIN_S = 1.5  # for handing back the result


def main() -> None:
    args = _arguments()
    if args.one:
        if args.cpu:
            _count_cpu()
        problem = _named(args.one, args.nodes) if args.wide else None
        print(json.dumps(run_one(args.one, args.methods[0], args.seconds or 60.0, args.seeds[0], problem)))
        return
    if args.segment:
        from bench.select_models import segment_times

        rows = list(segment_times())
    elif args.wide:
        rows = wide_rows(args)
    else:
        rows = synthetic(args.cpu) if args.synthetic else contest(args)
    _print_table(rows)
    if args.models:
        _say_agreement(rows)
    if args.out:
        Path(args.out).write_text(json.dumps(rows, indent=1))


def _count_cpu() -> None:
    """Limits count CPU seconds of this process from here on."""
    from meshwright.select import budget

    budget.clock = time.process_time


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", nargs="*", default=None)
    parser.add_argument("--methods", nargs="*", default=["auto"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=None, help="instead of the contest's limits")
    parser.add_argument("--cpu", action="store_true", help="limits in CPU seconds")
    parser.add_argument("--perturb", type=int, default=0)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--segment", action="store_true")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--wide", action="store_true", help="instances are named KIND-SEED, see select_wide.py")
    parser.add_argument("--nodes", type=int, default=800, help="of --wide")
    parser.add_argument("--out", default=None, help="a JSON file for the rows of the table")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def contest(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per file, method and seed."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path, limit, published in _files(args, Path(folder)):
            for method in args.methods:
                for seed in args.seeds:
                    answer = _in_process(path, method, args.seconds or limit, seed, ["--cpu"] if args.cpu else [])
                    row = {"instance": name, **answer, **published}
                    best = min((v for v in published.values() if v), default=None)
                    row["ratio"] = row["cost"] / best if best and row["cost"] else None
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def _files(args: argparse.Namespace, folder: Path) -> list[tuple[str, Path, float, dict[str, float | None]]]:
    if args.models:
        return _models(folder, tuple(args.instances or ("",)))
    if args.folder:
        return [(path.name, path, 60.0, {}) for path in sorted(Path(args.folder).glob("*.json*"))]
    found: list[tuple[str, Path, float, dict[str, float | None]]] = []
    with (SHARED / "scores.csv").open() as lines:
        for line in csv.DictReader(lines):
            name, limit = line["instance"], float(line["contest_time_limit_s"])
            if args.instances and name not in args.instances:
                continue
            path = SHARED / f"{name}.json.gz"
            if args.perturb:
                found += [(f"{name}~{i}", perturbed(path, i, folder), limit, {}) for i in range(args.perturb)]
            else:
                published = {key: float(line[key]) if line[key] else None for key in ("best_team_cost", "xla_cost")}
                found.append((name, path, limit, published))
    return found


def _models(folder: Path, prefixes: tuple[str, ...]) -> list[tuple[str, Path, float, dict[str, float | None]]]:
    from bench.select_models import problems
    from meshwright.select.contest import dump

    found: list[tuple[str, Path, float, dict[str, float | None]]] = []
    for problem in (each for each in problems() if each.name.startswith(prefixes)):
        path = folder / f"{problem.name}.json"
        dump(problem, path)
        found.append((problem.name, path, 60.0, {}))
    return found


def _say_agreement(rows: list[dict[str, Any]]) -> None:
    """Methods that prove their cost must agree on it, and none may be below auto's bound."""
    costs: dict[str, dict[str, float]] = {}
    bounds = {row["instance"]: row["bound"] for row in rows if row["method"] == "auto"}
    for row in rows:
        proven = row.get("gap") is not None and row["gap"] < 1e-6
        if proven:
            costs.setdefault(row["instance"], {})[row["method"]] = row["cost"]
        if row["cost"] is not None and row["cost"] < bounds.get(row["instance"], -np.inf) * (1 - 1e-6):
            print(f"{row['instance']}: {row['method']} is below the bound of auto")
    several = {name: found for name, found in costs.items() if len(found) > 1}
    apart = [name for name, found in several.items() if max(found.values()) > min(found.values()) * (1 + 1e-6)]
    print(f"{len(several)} problems with several proofs, {len(apart)} of them apart {apart or ''}")


def perturbed(path: Path, seed: int, folder: Path) -> Path:
    """The instance with every finite cost changed by up to a tenth and the limit by up to a twentieth."""
    from dataclasses import replace

    from meshwright.select.contest import dump, load

    rng = np.random.default_rng(seed)
    problem = load(path)

    def shaken(costs: np.ndarray) -> np.ndarray:
        return np.round(costs * rng.uniform(0.9, 1.1, len(costs)))

    changed = replace(
        problem,
        costs=shaken(problem.costs),
        edge_costs=shaken(problem.edge_costs),
        limits=np.round(problem.limits * rng.uniform(0.95, 1.05)),
    )
    target = folder / f"{seed}-{path.name}"
    dump(changed, target)
    return target


def _in_process(path: Path | str, method: str, seconds: float, seed: int, options: list[str]) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", str(path), "--methods", method, "--seconds", str(seconds), *options]
    answer = subprocess.run([*words, "--seeds", str(seed)], capture_output=True, text=True, check=False)
    if answer.returncode:
        return {"method": method, "seed": seed, "cost": None, "fault": answer.stderr[-300:]}
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def run_one(path: str, method: str, seconds: float, seed: int, problem: Problem | None = None) -> dict[str, Any]:
    """Reads and solves one file in this process, or the problem that is given."""
    began, cpu_began = time.perf_counter(), time.process_time()
    from meshwright.select import solve
    from meshwright.select.contest import load

    if problem is None:
        problem = load(path)
    read_s = time.perf_counter() - began
    selection = solve(problem, seconds=max(1.0, seconds - read_s - MARGIN_S), method=method, seed=seed)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "method": method,
        "seed": seed,
        "cost": selection.cost if selection.feasible else None,
        "bound": selection.bound if np.isfinite(selection.bound) else None,
        "gap": selection.gap if np.isfinite(selection.gap) else None,
        "read_s": round(read_s, 2),
        "wall_s": round(time.perf_counter() - began, 2),
        "cpu_s": round(time.process_time() - cpu_began, 2),
        "highs_cpu_s": round(children.ru_utime + children.ru_stime, 2),
        "peak_mib": (own.ru_maxrss + children.ru_maxrss) // 1024,
        "done": selection.done,
    }


def wide_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per instance, method and seed; `over_best`: its cost over the least that any of them found."""
    from bench.select_wide import HELD_OUT, KINDS

    names = [f"{kind}{rows}-{seed}" for kind in KINDS for rows in ("", "-memory") for seed in HELD_OUT]
    options = ["--wide", "--nodes", str(args.nodes), *(["--cpu"] if args.cpu else [])]
    found = []
    for name in args.instances or names:
        rows = []
        for method in args.methods:
            for seed in args.seeds:
                rows.append({"instance": name, **_in_process(name, method, args.seconds or 300.0, seed, options)})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        best = min((row["cost"] for row in rows if row["cost"]), default=None)
        for row in rows:
            row["over_best"] = row["cost"] / best - 1 if best and row["cost"] else None
        found += rows
    return found


def _named(name: str, nodes: int) -> Problem:
    from bench.select_wide import wide

    kind, _, seed = name.rpartition("-")
    return wide(kind, int(seed), nodes)


def synthetic(cpu: bool) -> list[dict[str, Any]]:
    """Layered graphs for 10 s each, and what one segment takes once everything is imported."""
    from bench.select_synthetic import layered, segment
    from meshwright.select import solve

    if cpu:
        _count_cpu()
    rows: list[dict[str, Any]] = []
    for nodes in (500, 3000):
        for options in (8, 16):
            for repeated in (False, True):
                problem = layered(nodes, options, repeated=repeated)
                rows.append(_timed(problem.name, lambda p=problem: solve(p, seconds=10)))  # type: ignore[misc]
    for count in (0, 4):
        problem = segment(rows=count)
        solve(problem, seconds=10, gap=1e-3)
        rows.append(_timed(problem.name, lambda p=problem: solve(p, seconds=10, gap=1e-3)))  # type: ignore[misc]
    return rows


def _timed(name: str, call: Any) -> dict[str, Any]:
    cpu, wall, highs = time.process_time(), time.perf_counter(), _children_s()
    selection = call()
    row = {
        "instance": name,
        "method": "auto",
        "seed": 0,
        "cost": selection.cost,
        "bound": selection.bound,
        "gap": selection.gap,
        "wall_s": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "highs_cpu_s": round(_children_s() - highs, 3),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _children_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = Table(title="selection")
    columns = ("instance", "method", "seed", "cost", "bound", "gap", "over_best", "best_team_cost", "xla_cost", "ratio",
               "wall_s", "cpu_s", "highs_cpu_s", "peak_mib", "nodes", "options", "entries", "prepare_ms", "run_ms",
               "solve_ms")  # fmt: skip
    columns = tuple(column for column in columns if any(column in row for row in rows))
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in columns))
    Console(width=160).print(table)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column in ("gap", "over_best"):
        return f"{value:.4%}"
    if column == "ratio":
        return f"{value:.6f}"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
