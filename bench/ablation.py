"""What each constant that steers the planner's search is worth: it is halved, doubled, or cut to its first.

    python bench/ablation.py [--constant solve.effort.OVERLAP_WEIGHTS ...] [--request "8b, 40 GiB" ...] [--list]

Constants are read off the source (`constants`), so that each has its line here; `OTHERS` names numbers that steer
nothing. A line has the worst change of the predicted step over the requests, in per cent, and that of the CPU seconds.
Writes out/ablation.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "meshwright" / "solve"
OUT = Path(__file__).parents[1] / "out"

OTHERS = {
    "solve.alone.REACHED": "whether a remark is worth its search",
    "solve.alone.USED": "whether a remark is printed",
    "solve.alternatives.SHOWN": "how many are printed",
    "solve.baselines.AXES": "of the recipes that people know",
    "solve.candidates.REMEMBERED": "size of a cache",
    "solve.compiled.NO_BOUND": "a gap that is not known",
    "solve.effort.ANY_BYTES": "more than any device has",
    "solve.effort.HEADROOM": "an option of the user",
    "solve.effort.SIMPLER_WITHIN": "an option of the user",
    "solve.intra.chain.ANY_PRICE": "more than any byte is worth",
    "solve.intra.chain.CLOSED": "rounding of sums",
    "solve.intra.pictures.PICTURE": "how many dims a picture has",
    "solve.intra.space.MOST_KNOWN": "size of a cache",
    "solve.memory.chain.ROUNDING": "rounding of sums",
    "solve.frontier.SHARES": "rows that are printed",
    "solve.one_device.ALIKE": "which recipe is shown of those that do not fit",
    "solve.one_device.LOSS": "measured of allocators",
    "solve.one_device.LOSS_BYTES": "measured of allocators",
    "solve.one_stage.ROUNDING": "rounding of sums",
    "solve.pipeline.by_hand.UNPROVEN": "a gap that is not known",
    "solve.pipeline.baselines.MOST_STAGES": "of the recipes that people know",
    "solve.pipeline.baselines.PARTS": "of the recipes that people know",
    "solve.pipeline.offers.SUMS": "columns of a table",
    "solve.pipeline.pins.FEWEST_RUNS": "what an interleaved schedule is",
    "solve.progress.AFTER_S": "when a line is printed",
    "solve.progress.EVERY_S": "when a line is printed",
    "solve.request.MOST_DEVICES": "more are refused",
    "solve.stages.bound.ROUGHLY": "rounding of sums",
    "solve.stages.bound.ROUNDING": "rounding of sums",
}
"""Numbers that steer no search, and what they are. `constants` leaves out those of `stages.survey` and of ranges."""

OTHER_LITERALS = {
    "solve.baselines": "of the recipes that people know",
    "solve.frontier.one_device_frontier": "rows that are printed",
    "solve.intra.storage": "stages of ZeRO",
    "solve.mixture._spread": "the middle",
    "solve.one_device.room_bytes": "measured of allocators",
    "solve.pin_words": "dims of sequences and experts, names that are printed",
    "solve.pipeline.baselines": "of the recipes that people know",
    "solve.pipeline.curve.held_points": "rounding of a price",
    "solve.pipeline.rows.largest_transients": "size of a cache",
    "solve.plan.make_plan": "an option of the user",
    "solve.progress": "how much is printed",
    "solve.roles": "dims of experts",
    "solve.stages.ranges.cluster": "rounding: halvings of a float",
}
"""Functions, or modules, whose literals steer no search, and what these are."""

PLAIN = (0, 1, 2)
"""Literals that are no choice of anybody's: ends, neighbours, both ways, halves and doubles."""

ROUNDING = 1e-8
"""Smaller ones are rounding of sums."""


def constants() -> dict[str, Any]:
    """Numeric constants of the planner's modules that steer its search, by module and name, with their values."""
    found: dict[str, Any] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "survey.py":  # the survey's searchers are not on the path of a plan
            continue
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
        if path.name == "survey.py" or module in OTHER_LITERALS:
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
    """Halved and doubled; of several numbers the first alone."""
    if isinstance(value, tuple):
        return [value[:1]] if len(value) > 1 else []
    if isinstance(value, int):
        return [max(1, value // 2), 2 * value]
    return [value / 2, value * 2] if isinstance(value, float) else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constant", action="append", help="only these")
    parser.add_argument("--request", action="append", help="of bench/plan_quality.py (default: three small ones)")
    parser.add_argument("--list", action="store_true", help="print the constants and end")
    args = parser.parse_args()
    every = constants()
    if args.list:
        print("\n".join(f"{name} = {value}" for name, value in every.items()))
        print("\n".join(f"{name}: {', '.join(map(str, numbers))} inside" for name, numbers in literals().items()))
        return 0
    rows = []
    asked = args.request or ["gpt2, tight", "t5-large, tight", "8b, 40 GiB"]
    before = {name: _planned(name) for name in asked}
    for constant in args.constant or every:
        for value in changed(every[constant]):
            rows.append(_row(constant, every[constant], value, before))
            print(json.dumps(rows[-1]), flush=True)
    OUT.mkdir(exist_ok=True)
    (OUT / "ablation.json").write_text(json.dumps(rows, indent=1))
    return 0


def _row(constant: str, value: Any, other: Any, before: dict[str, tuple[float, float]]) -> dict[str, Any]:
    module_name, _, name = constant.rpartition(".")
    with_it = {module for module in sys.modules.values() if getattr(module, name, None) is value}
    modules = {import_module(f"meshwright.{module_name}"), *with_it}  # who imported it by name has it too
    for module in modules:
        setattr(module, name, other)
    try:
        after = {request: _planned(request) for request in before}
    finally:
        for module in modules:
            setattr(module, name, value)
    slower = max(after[request][0] / before[request][0] - 1 for request in before)
    cpu_s = sum(after[request][1] - before[request][1] for request in before)
    return {"constant": constant, "from": str(value), "to": str(other), "slower": slower, "cpu_s": cpu_s}


def _planned(request: str) -> tuple[float, float]:
    """(predicted step, CPU seconds of planning)."""
    from plan_quality import REQUESTS

    from meshwright.capture import capture
    from meshwright.cluster import load_cluster
    from meshwright.models.reference import parse_reference
    from meshwright.plan.units import parse_bytes
    from meshwright.solve.plan import make_plan

    asked = REQUESTS[request]
    program = capture(*parse_reference(asked.model).meta(asked.batch), precision=asked.precision)
    begin_s, memory = time.process_time(), parse_bytes(asked.memory)
    plan = make_plan(program, load_cluster(asked.cluster), memory_bytes=memory, precision=asked.precision)
    return plan.predicted.step_s, time.process_time() - begin_s


if __name__ == "__main__":
    sys.exit(main())
