"""What each constant that steers the planner's search is worth: it is quartered, quadrupled, or cut to its first.

    python bench/ablation.py [--constant planner.effort.NEAR ...] [--request "8b, 40 GiB" ...] [--processes 16]
    python bench/ablation.py --processes 16 --page docs/constants.md
    python bench/ablation.py --list

Constants are read off the source (`constants`), so that each has its line here; `OTHERS` names numbers that steer
nothing. A line has, over the requests, the worst change of the predicted step and of the proven gap in per cent, and
the change of the CPU seconds of all. Writes out/ablation.json and prints a table.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from resource import RLIMIT_CPU, setrlimit
from typing import Any

Row = dict[str, Any]

PACKAGE = Path(__file__).parents[1] / "meshwright" / "planner"
OUT = Path(__file__).parents[1] / "out"

OTHERS = {
    "planner.space.candidates.REMEMBERED": "size of a cache",
    "planner.compiled.NO_BOUND": "a gap that is not known",
    "planner.effort.ANY_BYTES": "more than any device has",
    "planner.effort.HEADROOM": "an option of the user",
    "planner.effort.SIMPLER_WITHIN": "an option of the user",
    "planner.chain.lagrangian.ANY_PRICE": "more than any byte is worth",
    "planner.chain.lagrangian.CLOSED": "rounding of sums",
    "planner.space.image_boundaries.IMAGE_DIMS": "how many dims a picture has",
    "planner.space.segment.MOST_KNOWN": "size of a cache",
    "planner.sharding.segment.LARGEST_TABLE": "memory of a table; beyond it the same is asked pair by pair",
    "planner.chain.label_dp.ROUNDING": "rounding of sums",
    "planner.one_device.ALIKE": "which recipe is shown of those that do not fit",
    "planner.one_device.LOSS": "measured of allocators",
    "planner.one_device.LOSS_BYTES": "measured of allocators",
    "planner.one_stage.ROUNDING": "rounding of sums",
    "planner.pipeline.by_hand.UNPROVEN": "a gap that is not known",
    "planner.pipeline.sharded_chains.SUMS": "columns of a table",
    "planner.pipeline.pins.FEWEST_RUNS": "what an interleaved schedule is",
    "planner.progress.AFTER_S": "when a line is printed",
    "planner.progress.EVERY_S": "when a line is printed",
    "planner.request.MOST_DEVICES": "more are refused",
    "planner.stages.problem.FREE": "messages that take nothing",
    "planner.stages.bound.ROUGHLY": "rounding of sums",
    "planner.stages.bound.ROUNDING": "rounding of sums",
}
"""Numbers that steer no search, and what they are. `constants` leaves out those of ranges."""

OTHER_LITERALS = {
    "planner.space.storage": "stages of ZeRO",
    "planner.chain.remat_chain._spread": "the middle",
    "planner.one_device.room_bytes": "measured of allocators",
    "planner.stages.dealt._most_alike": "rounding: digits of a share",
    "planner.stages.grouping._heaviest": "rounding: halvings of a float",
    "planner.model_pins": "dims of sequences and experts, names that are printed",
    "planner.pipeline.op_memory.remat_levels": "rounding of a price",
    "planner.pipeline.range_figures.largest_transients": "size of a cache",
    "planner.plan.make_plan": "an option of the user",
    "planner.progress": "how much is printed",
    "planner.axis_names": "dims of experts",
}
"""Functions, or modules, whose literals steer no search, and what these are."""

PLAIN = (0, 1, 2)
"""Literals that are no choice of anybody's: ends, neighbours, both ways, halves and doubles."""

MOST_S = 150
"""CPU seconds of a plan, after which it counts as none."""

ROUNDING = 1e-8
"""Smaller ones are rounding of sums."""


def constants() -> dict[str, Any]:
    """Numeric constants of the planner's modules that steer its search, by module and name, with their values."""
    found: dict[str, Any] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for name in _numeric(ast.parse(path.read_text())):
            if f"{module}.{name}" not in OTHERS:
                found[f"{module}.{name}"] = getattr(import_module(f"meshwright.{module}"), name)
    return found


def _numeric(tree: ast.Module) -> list[str]:
    """Names in capitals that a module gives numbers, or tuples and records of numbers."""
    found = []
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        parts = list(ast.walk(node.value))
        ranges = any(isinstance(one, ast.Name) and one.id == "range" for one in parts)
        names = [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        if _literals(node.value) and not ranges:
            found += [name for name in names if name.isupper() and not name.startswith("_")]
    return found


def literals() -> dict[str, list[float]]:
    """Numbers inside functions that may steer the search, by module and function: all but plain ones, rounding, places
    in a row of columns and sizes of caches."""
    found: dict[str, list[float]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if module in OTHER_LITERALS:
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and f"{module}.{function.name}" not in OTHER_LITERALS:
                numbers = [one for one in _literals(function) if one not in PLAIN and one > ROUNDING]
                if numbers:
                    found[f"{module}.{function.name}"] = numbers
    return found


def _literals(node: ast.AST) -> list[float]:
    """Of a function without those inside it."""
    if isinstance(node, ast.Constant):
        return [node.value] if type(node.value) in (int, float) else []
    found: list[float] = []
    for field, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else [value]:
            skipped = isinstance(one, ast.FunctionDef) or (isinstance(node, ast.Subscript) and field == "slice")
            cache = field == "decorator_list"
            if isinstance(one, ast.AST) and not skipped and not cache:
                found += _literals(one)
    return found


def changed(value: Any) -> list[Any]:
    """A quarter and four times it, of a factor near one its distance from one; of several numbers the first alone; of
    a record each of its fields."""
    if isinstance(value, dict):
        record = value["default"]
        fields = [(name, one) for name in record.__slots__ for one in changed(getattr(record, name))]
        return [{**value, "default": replace(record, **{name: one})} for name, one in fields]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [value[:1]] if len(value) > 1 else []
    if isinstance(value, int):
        return sorted({max(1, value // 4), 4 * value} - {value})
    if 0.5 < value < 2 and value != 1:
        return [1 + (value - 1) / 4, max(0.0, 1 + 4 * (value - 1))]
    return [value / 4, value * 4] if value else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constant", action="append", help="only these")
    parser.add_argument("--request", action="append", help="of bench/plan_quality.py (default: four)")
    parser.add_argument("--processes", type=int, default=1, help="how many plans are made at once")
    parser.add_argument("--page", type=Path, help="write the table as a page of the documentation too")
    parser.add_argument("--list", action="store_true", help="print the constants and end")
    args = parser.parse_args()
    every = constants()
    if args.list:
        print("\n".join(f"{name} = {value}" for name, value in every.items()))
        print("\n".join(f"{name}: {', '.join(map(str, numbers))} inside" for name, numbers in literals().items()))
        return 0
    names = args.constant or list(every)
    changes = [(name, other) for name in names for other in changed(every[name])]
    asked = args.request or ["gpt2, tight", "t5-large, tight", "8b, 40 GiB", "8b, A100"]
    plans = _every_plan(asked, [None, *changes], args.processes)
    for request in asked:
        print(f"{request}: {plans[request, 0] or 'no plan'} (step s, gap, CPU s)")
    rows = [_row(plans, asked, change, every) for change in changes]
    OUT.mkdir(exist_ok=True)
    (OUT / "ablation.json").write_text(json.dumps(rows, indent=1))
    if args.page:
        args.page.write_text(page({request: plans[request, 0] for request in asked}, rows))
    for row in rows:
        found = f"no plan for {row.get('lost')}"
        if row["slower"] is not None:
            found = f"{row['slower']:+.2%} gap {row['gap']:+.2%} {row['cpu']:+.0%} CPU"
        print(f"{row['constant']:44} {row['from']} -> {row['to']}: {found}")
    return 0


Change = tuple[str, Any] | None
Made = tuple[float, float, float] | None
"""(predicted step, gap, CPU seconds of planning), none where there was no plan."""

INTRODUCTION = """# Constants of the search

{count} numbers steer the planner's search; a test finds them in the source and knows no more. None of them is part of a
price. Each was changed alone: quartered and quadrupled, or cut to its first entry. The step and the proven gap are the
worst over {requests} requests where memory binds, the CPU seconds are of all together: those of the same plan differ by
about 4 % from run to run on a shared machine. `python bench/ablation.py --processes 16 --page docs/constants.md`
makes this page.

As they are:

| request of `bench/plan_quality.py` | step (s) | proven gap |
|---|---|---|
{baseline}

Changed, in per cent (the gap in points):

| constant | as it is | changed to | step | gap | CPU |
|---|---|---|---|---|---|
{table}
"""


def page(baseline: dict[str, Made], rows: list[Row]) -> str:
    """The table as a page of the documentation."""
    lines = []
    for row in rows:
        name, before = row["constant"].rpartition(".")[2], row["from"] or "`default`"
        what = f"| `{name}` (`{row['constant'].rpartition('.')[0]}`) | {before} | {row['to']} |"
        if row["slower"] is None:
            lines.append(f"{what} no plan | | |")
        else:
            lines.append(f"{what} {row['slower'] * 100:+.2f} | {row['gap'] * 100:+.2f} | {row['cpu'] * 100:+.0f} |")
    return INTRODUCTION.format(
        count=len({row["constant"] for row in rows}),
        requests=len(baseline),
        baseline="\n".join(f"| {name} | {made[0]:.5g} | {made[1]:.2%} |" for name, made in baseline.items() if made),
        table="\n".join(lines),
    )


def _row(plans: dict[tuple[str, int], Made], asked: list[str], change: tuple[str, Any], every: dict[str, Any]) -> Row:
    constant, other = change
    row: Row = {"constant": constant, "from": _said(every[constant]), "to": _said(other, every[constant])}
    before = {request: plans[request, 0] for request in asked}
    after = {request: plans[request, id(change)] for request in asked}
    row["plans"] = after
    pairs = [(old, new) for request, old in before.items() if old and (new := after[request])]
    lost = [request for request, old in before.items() if old and not after[request]]
    row["lost"] = lost
    if lost or not pairs:
        return {**row, "slower": None, "gap": None, "cpu": None}
    worst = max(pairs, key=lambda pair: abs(pair[1][0] / pair[0][0] - 1))
    gap = max((new[1] - old[1] for old, new in pairs), key=abs)
    cpu = sum(new[2] for _, new in pairs) / sum(old[2] for old, _ in pairs) - 1
    return {**row, "slower": worst[1][0] / worst[0][0] - 1, "gap": gap, "cpu": cpu}


def _said(value: Any, before: Any = None) -> str:
    """Of a record what differs."""
    if not isinstance(value, dict):
        return str(value)
    new, old = asdict(value["default"]), asdict((before or value)["default"])
    return ", ".join(f"{name}={one}" for name, one in new.items() if one != old[name])


def _every_plan(asked: list[str], changes: list[Change], processes: int) -> dict[tuple[str, int], Made]:
    """By request and change. Each plan is made by a process of its own, forked once its program is captured: caches
    begin alike."""
    made: dict[tuple[str, int], Made] = {}
    running: dict[int, tuple[str, int, int]] = {}
    for request, planned in [(request, _prepared(request)) for request in asked]:
        for change in changes:
            if len(running) == processes:
                _ended(running, made)
            end, begin = os.pipe()
            child = os.fork()
            if child == 0:
                _child(planned, change, begin)
            os.close(begin)
            running[child] = request, id(change) if change else 0, end
    while running:
        _ended(running, made)
    return made


def _child(planned: Callable[[], Made], change: Change, begin: int) -> None:
    try:
        setrlimit(RLIMIT_CPU, (MOST_S, MOST_S))
        if change:
            _set(*change)
        os.write(begin, json.dumps(planned()).encode())
    except Exception as error:
        print(f"{change}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def _ended(running: dict[int, tuple[str, int, int]], made: dict[tuple[str, int], Made]) -> None:
    child, _ = os.wait()
    request, change, end = running.pop(child)
    with os.fdopen(end) as pipe:
        text = pipe.read()
    made[request, change] = tuple(json.loads(text)) if text else None


def _set(constant: str, other: Any) -> None:
    module_name, _, name = constant.rpartition(".")
    value = getattr(import_module(f"meshwright.{module_name}"), name)
    if isinstance(value, dict):
        value.update(other)
        return
    for module in list(sys.modules.values()):  # who imported it by name has it too
        if getattr(module, name, None) is value and module.__name__.startswith("meshwright"):
            setattr(module, name, other)


def _prepared(request: str) -> Callable[[], Made]:
    from plan_quality import REQUESTS

    from meshwright.capture import capture
    from meshwright.cluster import load_cluster
    from meshwright.models.reference import parse_reference
    from meshwright.plan.units import parse_bytes
    from meshwright.planner.plan import make_plan

    asked = REQUESTS[request]
    program = capture(*parse_reference(asked.model).meta(asked.batch), precision=asked.precision)
    cluster, memory = load_cluster(asked.cluster), parse_bytes(asked.memory)

    def planned() -> Made:
        begin_s = time.process_time()
        plan = make_plan(program, cluster, memory_bytes=memory, precision=asked.precision, simpler_within=0.0)
        return plan.predicted.step_s, plan.predicted.gap, time.process_time() - begin_s

    return planned


if __name__ == "__main__":
    sys.exit(main())
