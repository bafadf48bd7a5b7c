"""Step time and real peak memory of a model under budgets: ours and its rivals, on one GPU.

    python bench/activation_memory.py --json out/activation_memory.json          # the Llama-like LM, all rivals
    python bench/activation_memory.py --model gpt2-medium --batch 32 --budgets 34,19,9 --rivals eager,per-block,compile
    python bench/activation_memory.py --small --device cpu                        # a dry run of everything

Every way is a process of its own that compiles once, `--compilers` of them at a time; then every one runs in each of
three rounds, one after the other, alone on the GPU, on which the others keep no more than their weights. The figures
are medians over the rounds of the mean of `--steps` steps (zero_grad, forward, backward, AdamW). Peak:
torch.cuda.max_memory_allocated over these steps. A budget of ours is planned as `mw.fit` does and every step of it, the
first included, is run with the allocator's limit (torch.cuda.set_per_process_memory_fraction) set to it: one that needs
more fails. `hand N` is a hand-made frontier for a Llama (`activation_hand.py`). `--plans FOLDER` writes the
plans, and reads those that are there. `--seconds` ends the run after so long; what was measured by then is written.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import json
import tempfile
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.activation_child import Child
from bench.activation_hand import HAND
from bench.activation_rivals import RIVALS
from bench.activation_way import GIB, Way
from meshwright.capture import capture
from meshwright.cluster import Device
from meshwright.cluster.device_table import GPUS
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.memory.curves import Curves
from meshwright.planner.one_device import fit_curves, room_bytes
from meshwright.runtime.fit import REFERENCE, this_device

LLAMA = "llama?layers=16&hidden=2048&heads=16&kv_heads=16&ffn=5376&vocab=32000&seq=2048&tied=false"
SMALL = "llama?layers=3&hidden=64&heads=4&kv_heads=4&ffn=128&vocab=256&seq=32&tied=false"
BUDGETS = "48,40,32,30,25,20,14,11,10"


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.start = args, time.monotonic()
        self.refused: dict[str, dict[str, Any]] = {}
        self.children: dict[str, Child] = {}

    def left_s(self) -> float:
        return float(self.args.seconds - (time.monotonic() - self.start))

    def device(self) -> Device:
        """The GPU that is here; where there is none, the one that plans are made for."""
        if self.args.device == "cuda" and not torch.cuda.is_available():
            return GPUS[REFERENCE].device
        return this_device()

    @cached_property
    def curves(self) -> Curves:
        program = capture(*parse_reference(self.args.model).meta(self.args.batch), precision="bf16")
        before = time.process_time()
        found = fit_curves(program, self.device(), precision="bf16", compile=self.args.compile)
        print(f"curves in {time.process_time() - before:.1f} CPU s", flush=True)
        return found

    def budgets(self) -> list[float]:
        """As given; `auto`: three between the least possible and what keeping everything takes."""
        if self.args.budgets != "auto":
            return [float(text) for text in self.args.budgets.split(",") if text]
        most, least = self.curves.within(None).predicted.peak_bytes / GIB, self.curves.least_bytes / GIB
        return [round(least + share * (most - least), 4) for share in (1.05, 0.5, 0.2)]

    def plans(self, folder: Path) -> dict[str, float]:
        """Ours by name, with the budget; written to the folder unless they are there."""
        listed = folder / "budgets.json"
        if listed.exists():
            return dict(json.loads(listed.read_text()))
        folder.mkdir(parents=True, exist_ok=True)
        found = {}
        for budget in self.budgets():
            name = f"ours {budget:g} GiB"
            try:
                plan = self.curves.within(room_bytes(int(budget * GIB), self.device()))
            except PlanError as error:
                self.refused[name] = {"error": str(error)}
                continue
            plan.save(folder / f"{name}.json")
            found[name] = budget
        listed.write_text(json.dumps(found))
        return found

    def ways(self, folder: Path) -> list[Way]:
        args, found = self.args, []
        shared = Way("", args.model, args.batch, args.device, args.steps, args.lock, compiled=args.compile)
        for name, budget in self.plans(folder).items():
            limit = budget if args.limit else None
            found.append(replace(shared, name=name, plan=str(folder / f"{name}.json"), limit_gib=limit))
        rivals = [name for name in args.rivals.split(",") if name]
        found += [replace(shared, name=name) for name in (*rivals, *(HAND if args.hand else ()))]
        if args.traces:
            Path(args.traces).mkdir(parents=True, exist_ok=True)
            files = {way.name: f"{args.traces}/{way.name.replace(' ', '_')}.json" for way in found}
            found = [replace(way, trace=files[way.name]) if way.plan or way.name == "compile" else way for way in found]
        return found

    def run(self, folder: Path) -> None:
        logs = Path(self.args.logs) if self.args.logs else folder
        logs.mkdir(parents=True, exist_ok=True)
        ways = self.ways(folder)
        try:
            self.compile(ways, logs)
            print(f"all have compiled, {self.left_s():.0f} s left", flush=True)
            while self.args.start and not Path(self.args.start).exists() and self.left_s() > 0:
                time.sleep(0.2)
            traced = ["trace"] if self.args.traces else []
            for what in ["turn"] * self.args.rounds + traced:
                for child in self.children.values():
                    if "error" not in child.row and self.left_s() > 5 and (what == "turn" or child.way.trace):
                        child.ask(what)
                        self.note(child, self.left_s())
        finally:
            for child in self.children.values():
                child.end()
            self.write()
        self.show()

    def compile(self, ways: list[Way], logs: Path) -> None:
        """So many at a time, those first that take longest."""
        waiting = sorted(ways, key=lambda way: (not way.name.startswith("compile"), not way.plan))
        busy: list[Child] = []
        while (waiting or busy) and self.left_s() > 30:
            while waiting and len(busy) < self.args.compilers:
                way = waiting.pop(0)
                busy.append(Child(way, logs))
                self.children[way.name] = busy[-1]
                if way.plan:
                    predicted = Plan.load(way.plan).predicted
                    busy[-1].row["predicted"] = {"ms": predicted.step_s * 1e3, "gib": predicted.peak_bytes / GIB}
            for child in list(busy):
                found = child.answer(0.1)
                if found is not None:
                    busy.remove(child)
                    self.write_down(child, found)
        for child in busy:
            self.write_down(child, {"error": "not ready in time"})
        self.children = {way.name: self.children[way.name] for way in ways if way.name in self.children}

    def note(self, child: Child, seconds: float) -> None:
        """Wait for an answer and write it down."""
        self.write_down(child, child.answer(max(0.0, seconds)) or {"error": "not ready in time"})

    def write_down(self, child: Child, found: dict[str, Any]) -> None:
        if "ms" in found:
            child.row["rounds"].append(found)
        else:
            child.row.update(found)
        self.write()
        print(f"{self.left_s():6.0f} s left  {child.way.name}: {json.dumps(found)[:300]}", flush=True)

    def rows(self) -> dict[str, dict[str, Any]]:
        return self.refused | {name: child.row for name, child in self.children.items()}

    def write(self) -> None:
        if self.args.json:
            head = {"torch": torch.__version__, "model": self.args.model, "batch": self.args.batch}
            Path(self.args.json).parent.mkdir(parents=True, exist_ok=True)
            Path(self.args.json).write_text(json.dumps(head | {"rows": self.rows()}, indent=1) + "\n")

    def show(self) -> None:
        for name, row in self.rows().items():
            if not row.get("rounds"):
                print(f"{name:>16}  {row.get('error', 'not run')}")
                continue
            ms, gib = (median(found.get(key, 0.0) for found in row["rounds"]) for key in ("ms", "gib"))
            predicted = row.get("predicted", {})
            tail = f"  predicted {predicted['ms']:.1f} ms {predicted['gib']:.2f} GiB" if predicted else ""
            print(f"{name:>16}  {ms:8.1f} ms  {gib:6.2f} GiB{tail}  {row.get('error', '')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=LLAMA)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--budgets", default=BUDGETS, help="GiB, by commas; or auto")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-limit", dest="limit", action="store_false", help="do not set the allocator's limit")
    parser.add_argument("--small", action="store_true", help="a small model, to try it out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plans", help="a folder of plans")
    parser.add_argument("--plan-only", action="store_true", help="write the plans")
    parser.add_argument("--no-hand", dest="hand", action="store_false", help="without the hand-made frontier")
    parser.add_argument("--compilers", type=int, default=8, help="ways that compile at the same time")
    parser.add_argument("--logs", help="a folder for what the ways print")
    parser.add_argument("--traces", help="a folder for the kernels of a step of each of ours, and of torch.compile")
    parser.add_argument("--lock", default=f"{tempfile.gettempdir()}/activation_memory.lock", help="one GPU, one lock")
    parser.add_argument("--start", help="a file to wait for before the rounds: others may still compile")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=3600.0)
    args = parser.parse_args()
    if args.small:
        args.model, args.batch, args.rounds, args.steps = SMALL, 8, 1, 1
        args.budgets, args.rivals = "auto", "eager,per-block,selective,compile,compile 0.5"
    args.hand = args.hand and args.model in (LLAMA, SMALL)
    bench = Bench(args)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(args.plans or folder)
        if args.plan_only:
            bench.plans(place)
        else:
            bench.run(place)


if __name__ == "__main__":
    main()
