"""How near are predicted steps and memory to published training runs? Scores tables of them, set by set.

    python bench/published.py TABLE.csv [TABLE.csv ...] [--json FILE] [--rows] [--jobs N]

A table has a row for each run: the model's sizes, the cluster, the layout, the measured step and memory. Every row is
priced as it stands (`meshwright.configuration`), nothing is searched. Per set: rows, mean absolute error and bias of
the step, rank correlation, share of out-of-memory labels that are right, regret (how much slower, in published time,
the row is that we would choose among those of one model, cluster and batch), error of the memory. Rows that cannot be
modelled are listed with the reason; one that failed when it was published and that can not run at all (more stages
than layers) is listed as impossible, and its label is right. The exit status is 1 where no row could be scored.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from published_rows import UNFORESEEN, ImpossibleError, case_of, reason
from published_scores import Scored, scores
from row_tables import Refused, Row, check_written, read_table

from meshwright.configuration.replicas import predicted, steps_of
from meshwright.configuration.reserved import pooled_bytes, waiting_bytes, workspace_bytes
from meshwright.errors import MeshwrightError, PlanError


def priced(row: Row) -> Scored:
    """Raises Refused."""
    case = case_of(row)
    try:
        steps = steps_of(case.model, case.given, case.cluster, case.habits.framework)
        found = predicted(steps)
    except PlanError as error:
        raise ImpossibleError(reason(error)) from error
    except MeshwrightError as error:
        raise Refused(reason(error)) from error
    except UNFORESEEN as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    step, device = steps[0], case.cluster.devices[0]
    every = [one for each in steps for one in each.held]
    held = max(peak + (of.reserve_bytes if case.habits.in_use else 0) for of, peak in every)
    used = workspace_bytes(device)
    if case.habits.first_rank:
        held = max(step.first_bytes, min(step.first_bytes + used + waiting_bytes(step), device.usable_bytes))
    if case.habits.last_rank:
        held = max(step.last_bytes, min(step.last_bytes + used + pooled_bytes(step), device.usable_bytes))
    return Scored(row, found.step_s, held, not case.refused and all(peak <= of.usable_bytes for of, peak in every))


def _outcome(row: Row) -> Scored | Refused | ImpossibleError:
    try:
        return priced(row)
    except (Refused, ImpossibleError) as error:
        return error


def outcomes(rows: list[Row], jobs: int) -> list[Scored | Refused | ImpossibleError]:
    """Of each row; by several processes if asked for."""
    if jobs == 1:
        return list(map(_outcome, rows))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_outcome, rows, chunksize=8))


def score_tables(tables: list[Path], show: bool = False, jobs: int = 1) -> dict[str, Any]:
    found: dict[str, list[Scored]] = defaultdict(list)
    left_out: dict[str, list[str]] = defaultdict(list)
    impossible: dict[str, list[str]] = defaultdict(list)
    names: dict[str, None] = {}
    unread: Counter[str] = Counter()
    for path in tables:
        try:
            rows = read_table(path)
        except Refused as error:
            names[path.stem] = None
            left_out[path.stem].append(f"{path}: {error}")
            unread[path.stem] += 1
            continue
        for place, (row, one) in enumerate(zip(rows, outcomes(rows, jobs), strict=True)):
            name = row.get("set") or path.stem
            names[name] = None
            if isinstance(one, Scored):
                found[name].append(one)
                if show:
                    print(_line(name, one))
                continue
            failed = isinstance(one, ImpossibleError) and (row.get("status") or "ok") != "ok"
            (impossible if failed else left_out)[name].append(f"row {row.get('row_id') or place}: {one}")
    return {"sets": {name: scores(found[name], left_out[name], impossible[name], unread[name]) for name in names}}


def _line(name: str, one: Scored) -> str:
    row, error, memory = one.row, one.error, one.memory_error
    layout = " ".join(f"{key}={row.get(key)}" for key in ("tp", "pp", "dp", "cp", "zero", "micro_batch", "recompute"))
    shown = f"{name} {row.get('row_id', '')}: {row.get('params_B', '')}B on {row.get('num_gpus')} {row.get('gpu')} "
    shown += f"{layout}:"
    shown += f" step {one.step_s:.4g} s" + (
        "" if error is None else f", published {one.published_s:.4g} ({error:+.1%})"
    )
    return shown + f"; memory {one.peak_bytes / 1e9:.4g} GB" + ("" if memory is None else f" ({memory:+.1%})")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def show_sets(found: dict[str, Any]) -> None:
    print(f"{'set':<20}{'rows':>6}{'error':>8}{'bias':>8}{'rank':>7}{'oom':>7}{'regret':>8}{'worst':>8}{'memory':>8}")
    for name, one in found["sets"].items():
        rank = "-" if one["rank_correlation"] is None else f"{one['rank_correlation']:.2f}"
        figures = [one[key] for key in ("mean_abs_error", "bias")]
        others = [one[key] for key in ("oom_agreement", "median_regret", "worst_regret", "memory_error")]
        columns = [*map(_percent, figures), rank, *map(_percent, others)]
        widths = (8, 8, 7, 7, 8, 8, 8)
        text = "".join(column.rjust(width) for column, width in zip(columns, widths, strict=True))
        print(f"{name:<20}{one['rows']:>6}{text}")
        reasons = Counter(text.partition(": ")[2] for text in one["not_modelled"])
        for words, count in reasons.most_common(8):
            print(f"    not modelled: {count} x {words}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the scores here")
    parser.add_argument("--rows", action="store_true", help="print every row too")
    parser.add_argument("--jobs", type=int, default=1, help="processes that price rows")
    args = parser.parse_args()
    check_written(args.json)
    found = score_tables(args.tables, args.rows, max(1, args.jobs))
    show_sets(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if any(one["scored_rows"] for one in found["sets"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
