"""Kernel by kernel, what planned steps take and what they were priced at, to see where prices are wrong.

    python bench/step/diagnose.py --out OUT [--only NAME,...] [--eager] [--precision fp32]

Models that no accuracy is judged by, or that were judged before (`judged.py`). Per case: the step, the bytes at its
peak, every kernel of a step; of an eager one every node of every distinct segment, its device seconds (by the profiler)
and its host seconds (of the same model at a size that leaves the device nothing to do). All of it is written as JSON
beside the prices; the ops whose prices are furthest off are printed.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library
    sys.path[0] = sys.path[0].rpartition("/")[0].rpartition("/")[0]
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import argparse
import gzip
import json
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, fx

from bench.step.judged import case_of
from bench.step.planned import Case, Planned, Steps, as_here, measure
from meshwright.cluster import Device
from meshwright.cost.traced.fusible import tensors_of
from meshwright.cost.traced.kernels import fusion_groups, loaded
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.generate.cut import cut_at
from meshwright.generate.plain import plainly
from meshwright.generate.program import sharded_segments
from meshwright.plan import Plan
from meshwright.remat.traced import traced_for
from meshwright.runtime.fit import this_device

LLAMA = "hf:llama?hidden_size=1536&intermediate_size=4096&num_hidden_layers=10&num_attention_heads=12"
VISION = "hf:segformer?hidden_sizes=64,128,320,512&depths=3,4,6,3&num_attention_heads=1,2,5,8"
CASES = {
    "gpt": ("gpt2-medium?layers=12&seq=1024", 8, "gpt2-medium?layers=12&seq=32"),
    "llama": (
        f"{LLAMA}&num_key_value_heads=4&vocab_size=32000&seq=1024",
        8,
        f"{LLAMA.replace('1536', '96').replace('4096', '128')}&num_key_value_heads=4&vocab_size=128&seq=16",
    ),
    "vit": ("vit-large?layers=12", 64, "vit-large?layers=12&image=32"),
    "segformer": (f"{VISION}&hidden_dropout_prob=0&drop_path_rate=0&attention_probs_dropout_prob=0", 32, ""),
    "resnet": ("resnet50", 64, "resnet50?image=64"),
}
"""Name: reference, batch, the same at a size that the host bounds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="out")
    parser.add_argument("--only", default="")
    parser.add_argument("--eager", action="store_true", help="with all memory, alone")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"), help="of --eager")
    parser.add_argument("--seconds", type=float, default=180.0, help="no case is begun after so long")
    args = parser.parse_args()
    start, device = time.perf_counter(), as_here(this_device())
    wanted = args.only.split(",") if args.only else list(CASES)
    found: list[dict[str, Any]] = []
    asked = [(name, args.precision, False, False) for name in wanted] if args.eager else jobs(wanted)
    for name, precision, compiled, tight in asked:
        if time.perf_counter() - start > args.seconds:
            break
        case, small = case_of(name, precision, compiled), ""
        if name in CASES:
            reference, batch, small = CASES[name]
            case = Case(reference, batch, precision, compiled)
        try:
            row = diagnose(case, device, small, tight)
        except Exception:
            row = {"error": traceback.format_exc()[-1500:]}
        found.append({"name": name, "precision": precision, "compiled": compiled, "tight": tight} | row)
        print(f"[{time.perf_counter() - start:5.1f} s] {name} {precision} {compiled} {summary(row)}", flush=True)
        for line in furthest(row):
            print(f"          {line}", flush=True)
        with gzip.open(Path(args.out) / "diagnosis.json.gz", "wt", encoding="utf-8") as file:
            json.dump(found, file)
    return 0


def jobs(names: list[str]) -> Iterator[tuple[str, Any, bool, bool]]:
    for name in names:
        yield name, "bf16", False, False
    for name in names:
        yield name, "bf16", True, False
    for name in names[:2]:
        yield name, "fp32", False, False
    for name in names[:2]:
        yield name, "bf16", False, True


def summary(row: dict[str, Any]) -> str:
    if "error" in row:
        return row["error"][-300:]
    kernels = sum(us for _, us in row["kernels"])
    guess, real = row["predicted"], row["measured"]
    small = row.get("host", {}).get("step_s", 0.0)
    return (
        f"step {real['step_s'] * 1e3:.2f} ms, kernels {kernels / 1e3:.2f}, predicted {guess['step_s'] * 1e3:.2f} "
        f"({100 * (guess['step_s'] / real['step_s'] - 1):+.1f} %), peak {real['peak_bytes'] / 2**30:.2f} GiB, "
        f"predicted {guess['peak_bytes'] / 2**30:.2f}; small {small * 1e3:.2f} ms"
    )


def furthest(row: dict[str, Any], most: int = 12) -> Iterator[str]:
    """Ops by how far their prices are from the device's seconds, over all instances of a step."""
    found: dict[str, list[float]] = {}
    for segment in row.get("segments", ()):
        for node in (node for half in ("first", "second") for node in segment.get(half, {}).get("nodes", ())):
            if "device_s" in node:
                own = found.setdefault(f"{node['target']} {[shape for shape, _, _ in node['makes']]}", [0, 0.0, 0.0])
                for index, value in enumerate((1, node["priced_s"], node["device_s"])):
                    own[index] += segment["instances"] * value
    for name, (count, priced, device) in sorted(found.items(), key=lambda pair: -abs(pair[1][1] - pair[1][2]))[:most]:
        yield f"{priced * 1e3:7.3f} ms priced, {device * 1e3:7.3f} measured, {count:.0f} of {name[:110]}"


def diagnose(case: Case, device: Device, small: str, tight: bool) -> dict[str, Any]:
    began = time.perf_counter()
    planned = Planned(case, device)
    plan = planned.plan(tight)
    step = Steps(planned.trainer(plan), planned.data())
    row: dict[str, Any] = {"case": str(case), "predicted": predicted(plan), "planned_s": time.perf_counter() - began}
    row["measured"] = measure(step, 0.6, 3)
    row["kernels"] = kernels_of(step)
    del step
    row["segments"] = [segment(planned, plan, graphs, device) for graphs in distinct(planned, plan)]
    if small and not tight and (not case.compiled or case.name.startswith("gpt")):
        row["host"] = host_of(Case(small, 2, case.precision, case.compiled), device)
    return row


def predicted(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in asdict(plan.predicted).items() if isinstance(value, int | float | bool)}


def kernels_of(step: Steps) -> list[tuple[str, float]]:
    """Of one step, in order."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name[:160], event.time_range.elapsed_us()) for event in events]


def distinct(planned: Planned, plan: Plan) -> list[list[int]]:
    """Instances by graph and Choice."""
    found: dict[tuple[int, int], list[int]] = {}
    graphs = sharded_segments(planned.program, plan)
    for index, graph in enumerate(graphs):
        found.setdefault((id(graph), plan.segments[index]), []).append(index)
    return list(found.values())


def segment(planned: Planned, plan: Plan, instances: list[int], device: Device) -> dict[str, Any]:
    """Nodes of both halves with their prices; measured too where they run as they are."""
    graph = sharded_segments(planned.program, plan)[instances[0]]
    joint, choice = traced_for(device)(graph), plan.choice(instances[0])
    halves = cut_at(joint, choice.recompute, choice.keep).halves
    costs = loaded(joint.module, NodeCosts(device, planned.case.compiled, plan.mesh))
    row: dict[str, Any] = {"instances": len(instances), "chunks": choice.chunks, "steady": list(costs.steady)}
    arguments = [random_tensor(node.meta["val"], device) for node in placeholders(halves.first)]
    results = None
    for name, module in (("first", halves.first), ("second", halves.second)):
        nodes = [described(node, costs) for node in module.graph.nodes if node.op == "call_function"]
        row[name] = {"nodes": nodes}
        if planned.case.compiled:
            groups = fusion_groups(module)
            row[name]["groups"] = [[str(node) for node in group] for group in groups]
            continue
        if results is not None:
            saved = dict(zip(halves.saved, results[len(results) - len(halves.saved) :], strict=True))
            found = [saved.get(node.name) for node in placeholders(module)]
            pairs = zip(found, placeholders(module), strict=True)
            arguments = [random_tensor(node.meta["val"], device) if t is None else t for t, node in pairs]
        try:
            timed, results = device_times(module, arguments)
            for node in nodes:
                node["device_s"] = timed.get(node["name"], 0.0)
        except Exception as error:
            row[name]["error"] = f"{type(error).__name__}: {error}"[:300]
            break
    return row


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def described(node: fx.Node, costs: NodeCosts) -> dict[str, Any]:
    def shapes(value: object) -> list[Any]:
        return [[list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")] for t in tensors_of(value)]

    return {
        "name": node.name,
        "target": str(node.target),
        "reads": [[other.name, shapes(other.meta.get("val"))] for other in node.all_input_nodes],
        "makes": shapes(node.meta.get("val")),
        "args": [str(arg)[:60] for arg in node.args],
        "priced_s": costs.seconds(node),
    }


def random_tensor(like: Any, device: Device) -> Any:
    if not isinstance(like, Tensor):
        return like
    place = torch.device(device.kind)
    if like.dtype.is_floating_point:
        found = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=place)
        return found.normal_()
    return torch.zeros(like.shape, dtype=like.dtype, device=place)


def device_times(module: fx.GraphModule, arguments: list[Any]) -> tuple[dict[str, float], tuple[Any, ...]]:
    """Device seconds of every node, of one run among others; and the results."""
    run(module.graph, arguments)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        results = run(module.graph, arguments, marked=True)
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profile.key_averages():
        if event.key.startswith("node:"):
            found[event.key.removeprefix("node:")] = event.device_time_total * 1e-6
    return found, results


@torch.no_grad()
def run(
    graph: fx.Graph, arguments: list[Any], marked: bool = False, stamps: dict[str, float] | None = None
) -> tuple[Any, ...]:
    """Node by node; each let go of after its last use."""
    values: dict[fx.Node, Any] = {}
    last: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for other in node.all_input_nodes:
            if not any(other in ended for ended in last.values()):
                last.setdefault(node, []).append(other)
    given = iter(arguments)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "output":
            return tuple(fx.map_arg(list(node.args[0]), values.__getitem__))
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if marked:
                with torch.profiler.record_function(f"node:{node.name}"):
                    values[node] = node.target(*args, **kwargs)
            else:
                start = time.perf_counter()
                values[node] = node.target(*args, **kwargs)
                if stamps is not None:
                    stamps[node.name] = time.perf_counter() - start
            del args, kwargs
        for other in last.get(node, ()):
            if other.op != "placeholder":
                values.pop(other, None)
    raise AssertionError("a graph ends with its output")


def host_of(case: Case, device: Device) -> dict[str, Any]:
    """A step that the host bounds: its seconds, those of its parts, and of every node as it is called."""
    planned = Planned(case, device)
    plan = planned.plan()
    step = Steps(planned.trainer(plan), planned.data())
    found: dict[str, Any] = measure(step, 0.5, 3) | phases(step)
    found["parameters"] = len(list(step.trainer.parameters()))
    found["predicted"] = predicted(plan)
    rows: list[list[Any]] = []
    for instances in () if case.compiled else distinct(planned, plan):
        graph = sharded_segments(planned.program, plan)[instances[0]]
        choice = plan.choice(instances[0])
        halves = cut_at(traced_for(device)(graph), choice.recompute, choice.keep).halves
        results: tuple[Any, ...] = ()
        for module in (halves.first, halves.second):
            saved = dict(zip(halves.saved, results[len(results) - len(halves.saved) :], strict=True)) if results else {}
            given = [saved.get(node.name) for node in placeholders(module)]
            pairs = zip(given, placeholders(module), strict=True)
            arguments = [random_tensor(node.meta["val"], device) if t is None else t for t, node in pairs]
            plainly(module.graph)
            rows.append([len(instances), host_times(module.graph, arguments)])
            results = run(module.graph, arguments)
    return found | {"halves": rows}


def phases(step: Steps, count: int = 20) -> dict[str, float]:
    """Seconds of trainer and optimizer, one after the other without waiting for the device."""
    columns: list[list[float]] = [[], [], []]
    assert step.optimizer is not None
    for _ in range(count):
        stamps = [time.perf_counter()]
        step.optimizer.zero_grad()
        stamps.append(time.perf_counter())
        step.trainer.step(step.data)
        stamps.append(time.perf_counter())
        step.optimizer.step()
        stamps.append(time.perf_counter())
        for column, a, b in zip(columns, stamps, stamps[1:], strict=False):
            column.append(b - a)
    return dict(zip(("zero_s", "trainer_s", "optimizer_s"), map(median, columns), strict=True))


def host_times(graph: fx.Graph, arguments: list[Any], count: int = 12) -> list[list[Any]]:
    rows: dict[str, list[float]] = {}
    for _ in range(count):
        stamps: dict[str, float] = {}
        run(graph, arguments, stamps=stamps)
        torch.cuda.synchronize()
        for name, seconds in stamps.items():
            rows.setdefault(name, []).append(seconds)
    targets = {node.name: getattr(node.target, "__name__", str(node.target)) for node in graph.nodes}
    full = {node.name: str(node.target) for node in graph.nodes}
    return [[name, targets[name], full[name][:80], median(values)] for name, values in rows.items()]


if __name__ == "__main__":
    sys.exit(main())
