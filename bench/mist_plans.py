"""Plans that Mist chose, under our prices, against what our planner chooses for the same model, cluster and memory.

    python bench/mist_plans.py mist_chosen_plans.csv [steps2_visible.csv] [--plans 1,5] [--price-only] [--json FILE]

Both are priced eager, in mixed precision, with fused attention, by the same device and links. Mist's plan is priced as
a Configuration (`mw.price`), by layers that are described by hand; where pins say all of it, as our planner prices it,
op by op (`by pins`). Ours is its own prediction. Plans that one of the two cannot express are listed with the reason,
and so are those that the card has no memory for as we run them. With a table of steps, Mist's own measured step is held
against its plan's price under Mist's habits.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from published import priced
from published_rows import Case, case_of
from row_tables import Refused, Row, table_or_exit

import meshwright as mw
from meshwright.configuration.framework import PLAIN
from meshwright.configuration.step import Step
from meshwright.configuration.transformer import transformer_of
from meshwright.errors import MeshwrightError

GIB = 2**30


def as_row(plan: Row) -> Row:
    """The plan in the columns of a table of published steps. Raises Refused where stages differ too much."""
    lists = {key: plan[key].split("|") for key in plan if key.startswith("stage_")}
    for key in ("stage_dp", "stage_tp", "stage_zero"):
        if len(set(lists[key])) > 1:
            raise Refused(f"{key.removeprefix('stage_')} differs by stage: {plan[key]}")
    for key in ("stage_offload_activations", "stage_offload_weights", "stage_offload_grads"):
        if any(float(part) for part in lists[key]):
            raise Refused(f"{key.removeprefix('stage_').replace('_', ' of ')}")
    nodes, each = int(plan["nodes"]), int(plan["gpus_per_node"])
    offload = "|".join(f"0/0/{part}/0" for part in lists["stage_offload_optimizer"])
    same = ("family", "layers", "hidden", "heads", "ffn", "vocab", "seq", "gated_mlp", "gpu", "global_batch", "pp")
    return {key: plan[key] for key in same} | {
        "set": "mist",
        "row_id": plan["plan_id"],
        "num_gpus": str(nodes * each),
        "gpus_per_node": str(each),
        "dp": lists["stage_dp"][0],
        "tp": lists["stage_tp"][0],
        "zero": lists["stage_zero"][0],
        "micro_batch": plan["micro_batch"],
        "stage_layers": plan["stage_layers"],
        "recompute": "partial",
        "stage_recompute_layers": plan["stage_recompute_layers"],
        "stage_offload": offload,
        "precision": "fp16",
        "attention": "flash" if plan["flash"] == "true" else "unfused",
        "note": "no_biases" + (";clocks_locked_1050MHz" if plan["gpu"] == "L4" else ""),
    }


def reference(row: Row) -> str:
    """The model as our planner reads it: as Mist's, but for the biases of `gpt`."""
    sizes = {name: row[name] for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq")} | {"tied": "false"}
    if row["family"] == "llama":
        sizes["kv_heads"] = row["heads"]
    return f"{row['family']}?" + "&".join(f"{name}={value}" for name, value in sizes.items())


def mist_price(row: Row, case: Case) -> tuple[float, float]:
    """Seconds and bytes of Mist's plan for the model that our planner is asked for, run as our eager plans are."""
    given = replace(case.given, fused=False, overlap=1.0, gradients="float32", reduce="float32", precision="mixed")
    found = Step(transformer_of(reference(row)), given, case.cluster, PLAIN).predict()
    return found.step_s, found.peak_bytes


def pins_of(plan: Row) -> list[str]:
    """The plan as pins; none where its stages recompute or offload parts, which pins cannot say."""
    lists = {key: plan[key].split("|") for key in plan if key.startswith("stage_")}
    parts = [
        part for key, each in lists.items() if key.startswith(("stage_recompute", "stage_offload")) for part in each
    ]
    if any(map(float, parts)):
        return []
    layers = [int(one) for one in lists["stage_layers"]]
    layers[0], layers[-1] = layers[0] + 1, layers[-1] + 1  # the embedding and the head
    stages = [f"pp={plan['pp']}", f"layers={'+'.join(map(str, layers))}", "schedule=1f1b"] if len(layers) > 1 else []
    shared = [f"dp={lists['stage_dp'][0]}", f"tp={lists['stage_tp'][0]}", f"zero={lists['stage_zero'][0]}"]
    alone = lists["stage_dp"][0] == lists["stage_tp"][0] == "1"
    return [*stages, *([] if alone else shared), f"microbatch={plan['microbatches']}", "recompute=keep"]


def measured_steps(path: Path | None) -> dict[str, Row]:
    """Rows of measured steps by the file of the plan that was measured."""
    rows = table_or_exit(path) if path else []
    return {row["source"].split()[-1]: row for row in rows if row.get("set") == "mist_l4" and row.get("source")}


def our_plan(row: Row, case: Case, limit: int, pins: list[str]) -> tuple[float, float]:
    """Seconds and bytes of what our planner chooses under these pins. limit: bytes."""
    usable = min(device.usable_bytes for device in case.cluster.devices)
    ours = mw.plan(
        reference(row),
        cluster=case.cluster,
        global_batch=case.given.global_batch,
        memory=min(limit, usable),  # of a limit above the card's, `plan` keeps some headroom
        precision="mixed",
        pins=pins,
    )
    return ours.predicted.step_s, ours.predicted.peak_bytes


def both_plans(plan: Row, row: Row, case: Case) -> dict[str, Any]:
    """What our planner chooses, and Mist's plan as it prices it where pins can say it."""
    begin, limit, found = process_time(), round(float(plan["memory_GiB"]) * GIB), {}
    found["ours_s"], found["ours_bytes"] = our_plan(row, case, limit, [])
    found["cpu_s"] = process_time() - begin
    if pins := pins_of(plan):
        with suppress(MeshwrightError):  # it does not fit as we run it
            found["mist_s"], found["mist_bytes"] = our_plan(row, case, limit, pins)
            found["pins"] = " ".join(pins)
    return found


def compare(plan: Row, steps: dict[str, Row], search: bool = True) -> dict[str, Any]:
    """search: our planner is asked too."""
    found: dict[str, Any] = {"plan": plan["plan_id"], "model": plan["model"], "gpu": plan["gpu"]}
    found["gpus"] = int(plan["nodes"]) * int(plan["gpus_per_node"])
    measured = steps.get(plan["source"].split()[-1])
    if measured:
        found["measured_error"] = priced(measured).error
    try:
        row = as_row(plan)
        case = case_of(row)
        found["mist_s"], found["mist_bytes"] = mist_price(row, case)
        if search and row["attention"] == "unfused":
            raise Refused("attention that is not fused, which our models do not have")
        if search:
            found |= both_plans(plan, row, case)
        card = min(device.usable_bytes for device in case.cluster.devices)
        if found["mist_bytes"] > card:
            found["over"] = f"needs {found['mist_bytes'] / GIB:.3g} GiB as we run it, of {card / GIB:.3g}"
    except (Refused, MeshwrightError) as error:
        found["reason"] = str(error).splitlines()[0]
    return found


def line(one: dict[str, Any]) -> str:
    text = f"{one['plan']:>3} {one['model']:<11} {one['gpus']:>3} {one['gpu']:<14}"
    if "measured_error" in one:
        text += f" measured {one['measured_error']:+.1%}"
    if "mist_s" in one:
        text += f" Mist's {one['mist_s']:.3g} s, {one['mist_bytes'] / GIB:.3g} GiB"
        text += f" (by pins {one['pins']})" if "pins" in one else ""
        text += f" ({one['over']})" if "over" in one else ""
    if "ours_s" in one:
        ratio = one["ours_s"] / one["mist_s"]
        text += f"; ours {one['ours_s']:.3g} s, {one['ours_bytes'] / GIB:.3g} GiB ({ratio:.3f} of it)"
        text += f"; {one['cpu_s']:.0f} CPU s"
    return text + (f" not compared: {one['reason']}" if "reason" in one else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans_table", type=Path)
    parser.add_argument("steps", type=Path, nargs="?", help="measured steps, in the schema of bench/published.py")
    parser.add_argument("--plans", default="", help="only these plan ids, such as 1,5")
    parser.add_argument("--price-only", action="store_true", help="leave our planner out")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    steps, only = measured_steps(args.steps), set(filter(None, args.plans.split(",")))
    found = []
    for plan in table_or_exit(args.plans_table):
        if not only or plan["plan_id"] in only:
            found.append(compare(plan, steps, not args.price_only))
            print(line(found[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"plans": found}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
