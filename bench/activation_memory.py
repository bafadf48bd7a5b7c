"""Step time and real peak memory of a language model under budgets: ours and its rivals, on one GPU.

    python bench/activation_memory.py --json out/activation_memory.json          # the Llama-like LM, all rivals
    python bench/activation_memory.py --model "gpt2-medium?dropout=0" --batch 16 --budgets 40,20,14
    python bench/activation_memory.py --small --device cpu                        # a dry run of everything, seconds

Every rival and every budget of ours runs in each of three rounds, one after the other; the figures are medians over
the rounds of the mean of `--steps` steps (zero_grad, forward, backward, AdamW). Peak: torch.cuda.max_memory_allocated
over these steps. A budget of ours is planned as `mw.fit` does and run with the allocator's limit
(torch.cuda.set_per_process_memory_fraction) set to it: a step that needs more fails. `hand N` are the choices of a
hand-made frontier for a Llama, run like ours: matmuls and attention kept; gate and up recomputed in half of the
layers; in all; query, key and value too; everything; always with 8 chunks of the head. `--plans FOLDER` writes the
plans, and reads those that are there. `--workers N` processes compile first, side by side, into inductor's cache.
`--seconds` ends the run after so long; what was measured by then is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import argparse
import gc
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from bench.activation_rivals import RIVALS, CompiledError, Rival, hand_rotary_tables
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.generate.program import generate
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.runtime.fit import fit_curves, room_bytes, this_device
from meshwright.runtime.sources import weights_of
from meshwright.runtime.trainer import Settings, Trainer
from meshwright.solve.memory.plan import Curves

GIB = 1 << 30
LLAMA = "llama?layers=16&hidden=2048&heads=16&kv_heads=16&ffn=5376&vocab=32000&seq=2048&tied=false"
SMALL = "llama?layers=3&hidden=64&heads=4&kv_heads=4&ffn=128&vocab=256&seq=32&tied=false"
BUDGETS = "48,40,32,30,25,20,14,11,10"
NORMS = {"rms_norm", "rms_norm_1", "silu", "mul_4"}
FFN = NORMS | {"linear_4", "linear_5"}
ATTENTION = FFN | {"add", "add_1", "linear_2"}
EVERYTHING = ATTENTION | {"scaled_dot_product_attention", "scaled_dot_product_attention~0", "add_2"}
HAND: dict[str, tuple[set[str], set[str]]] = {
    "hand 1": (NORMS, NORMS),
    "hand 2": (FFN, NORMS),
    "hand 3": (FFN, FFN),
    "hand 4": (ATTENTION, ATTENTION),
    "hand 5": (EVERYTHING, EVERYTHING),
}
"""What even and odd layers of a Llama compute again."""

Step = Callable[[], Tensor]


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, torch.device(args.device)
        self.reference = parse_reference(args.model)
        self.start = time.monotonic()
        torch.manual_seed(0)
        shapes = self.reference.shapes(args.batch)
        self.batch = {name: self._tensor(shape, kind) for name, (shape, kind) in shapes.items()}
        self.rows: dict[str, dict[str, Any]] = {}
        self.rivals: dict[str, Rival] = {}

    def _tensor(self, shape: tuple[int, ...], kind: str) -> Tensor:
        if kind.startswith("int"):
            settings = dict(self.reference.settings)
            return torch.randint(0, settings.get("vocab") or settings.get("classes", 10), shape, device=self.device)
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

    def left_s(self) -> float:
        return float(self.args.seconds - (time.monotonic() - self.start))

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        with self.device:
            return self.reference.build().to(torch.bfloat16).train()

    @cached_property
    def program(self) -> Program:
        return capture(*self.reference.meta(self.args.batch), precision="bf16")

    @cached_property
    def curves(self) -> Curves:
        program, before = self.program, time.process_time()
        found = fit_curves(program, this_device(), precision="bf16", compile=self.args.compile)
        print(f"curves in {time.process_time() - before:.1f} CPU s", flush=True)
        return found

    @contextmanager
    def rival(self, name: str) -> Iterator[Step]:
        hand_rotary_tables(dict(self.reference.settings), self.device)
        if name not in self.rivals:
            self.rivals[name] = Rival(name, self.model(), self.batch)
        found = self.rivals[name]
        found.wake(self.device)
        try:
            yield found.step
        finally:
            found.park()

    @contextmanager
    def ours(self, name: str, plan: Plan) -> Iterator[Step]:
        weights = weights_of(self.model(), None, 0, self.device)
        settings = Settings(compiled=self.args.compile)
        trainer = Trainer(weights, plan, self.program, self.device, settings)
        del weights  # and with them the model they were copied from
        optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-5, fused=True)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = trainer.step(self.batch)
            optimizer.step()
            return loss

        self.rows.setdefault(name, {})["predicted"] = {
            "ms": plan.predicted.step_s * 1e3,
            "gib": plan.predicted.peak_bytes / GIB,
        }
        yield step

    def plan(self, budget: float) -> Plan:
        return self.curves.within(room_bytes(int(budget * GIB), this_device()))

    def budgets(self) -> list[float]:
        """As given; `auto`: three between the least possible and what keeping everything takes."""
        if self.args.budgets != "auto":
            return [float(text) for text in self.args.budgets.split(",") if text]
        most, least = self.curves.within(None).predicted.peak_bytes / GIB, self.curves.least_bytes / GIB
        return [round(least + share * (most - least), 1) for share in (0.65, 0.35, 0.1)]

    def hand_made(self, name: str) -> Plan:
        """A plan with these choices; its prediction is that of the ample one."""
        plan, last = self.curves.within(None), len(self.curves.options) - 1
        chosen = []
        for index in range(last + 1):
            again = HAND[name][index % 2] if 0 < index < last else set()
            chunks = min(8, self.args.batch) if index == last else 1
            chosen.append(replace(plan.choice(index), recompute=tuple(sorted(again)), keep=(), chunks=chunks))
        choices = [index for index, choice in enumerate(chosen) if chosen.index(choice) == index]
        segments = tuple(choices.index(chosen.index(choice)) for choice in chosen)
        return replace(plan, choices=tuple(chosen[index] for index in choices), segments=segments)

    def plans(self) -> dict[str, tuple[Plan, float | None]]:
        """Ours by name, each with the limit that the allocator is given; those of the folder, if it has any."""
        folder = Path(self.args.plans) if self.args.plans else None
        if folder and (folder / "limits.json").exists():
            limits = json.loads((folder / "limits.json").read_text())
            return {name: (Plan.load(folder / f"{name}.json"), limit) for name, limit in limits.items()}
        found: dict[str, tuple[Plan, float | None]] = {}
        for budget in self.budgets():
            try:
                found[_name(budget)] = (self.plan(budget), budget if self.args.limit else None)
            except PlanError as error:
                self.rows[_name(budget)] = {"error": str(error)}
        for name in HAND if self.args.hand else ():
            found[name] = (self.hand_made(name), None)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            for name, (plan, _) in found.items():
                plan.save(folder / f"{name}.json")
            (folder / "limits.json").write_text(json.dumps({name: limit for name, (_, limit) in found.items()}))
        return found

    def warm(self, worker: int, workers: int) -> None:
        """This worker's share of what is to be compiled, into inductor's cache."""
        jobs: list[Callable[[], Any]] = [
            partial(self._warm_rival, name) for name in self.rival_names() if "comp" in name
        ]
        jobs += [partial(self._warm_plan, plan) for plan, _ in self.plans().values()] if self.args.compile else []
        for job in jobs[worker::workers]:
            job()

    def _warm_rival(self, name: str) -> None:
        hand_rotary_tables(dict(self.reference.settings), self.device)
        try:
            Rival(name, self.model(), self.batch, only_compile=True).run(**self.batch)
        except Exception as error:
            print("compiled", name, "" if CompiledError.__name__ in str(error) else repr(error)[:300], flush=True)

    def _warm_plan(self, plan: Plan) -> None:
        generate(self.program, plan, self.device.type, True)

    def rival_names(self) -> list[str]:
        return [name for name in self.args.rivals.split(",") if name]

    def measure(self, name: str, make: Callable[[], Any], limit_gib: float | None) -> None:
        row = self.rows.setdefault(name, {})
        if "error" in row:
            return
        try:
            with make() as step:
                first = not row.get("rounds")
                row.setdefault("rounds", []).append(self._time(step, limit_gib, first))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:400]
        self._clean()
        self.write()
        print(name, json.dumps(row)[:300], f"{self.left_s():.0f} s left", flush=True)

    def _time(self, step: Step, limit_gib: float | None, first: bool) -> dict[str, float]:
        cuda = self.device.type == "cuda"
        if cuda and limit_gib is not None:
            self._clean()
            whole = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_gib * GIB / whole))
        try:
            for _ in range(2 if first else 1):
                loss = step()
            self._sync()
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            before = time.perf_counter()
            for _ in range(self.args.steps):
                loss = step()
            self._sync()
            found = {"ms": (time.perf_counter() - before) / self.args.steps * 1e3, "loss": float(loss)}
            if cuda:
                found |= {
                    "gib": torch.cuda.max_memory_allocated() / GIB,
                    "reserved": torch.cuda.max_memory_reserved() / GIB,
                }
            return found
        finally:
            if cuda:
                torch.cuda.set_per_process_memory_fraction(1.0)

    def _sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _clean(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self) -> None:
        plans = self.plans()
        self.compile_side_by_side()
        for _ in range(self.args.rounds):
            for name, (plan, limit) in plans.items():
                if self.left_s() > 10:
                    self.measure(name, partial(self.ours, name, plan), limit)
            for name in self.rival_names():
                if self.left_s() > 10:
                    self.measure(name, partial(self.rival, name), None)
        self.show()

    def compile_side_by_side(self) -> None:
        given = [a for a in sys.argv[1:] if not a.startswith("--workers")]
        workers = range(0 if self.args.warmed else self.args.workers)
        command = [sys.executable, os.path.abspath(__file__), *given, f"--workers={self.args.workers}"]
        children = [subprocess.Popen([*command, f"--worker={number}"]) for number in workers]
        for child in children:
            child.wait()
        print(f"{len(children)} workers have compiled, {self.left_s():.0f} s left", flush=True)

    def write(self) -> None:
        if self.args.json:
            torch_version = {"torch": torch.__version__, "model": self.args.model, "batch": self.args.batch}
            Path(self.args.json).parent.mkdir(parents=True, exist_ok=True)
            Path(self.args.json).write_text(json.dumps(torch_version | {"rows": self.rows}, indent=1) + "\n")

    def show(self) -> None:
        for name, row in self.rows.items():
            if not row.get("rounds"):
                print(f"{name:>16}  {row.get('error', 'not run')}")
                continue
            ms, gib = (median(found.get(key, 0.0) for found in row["rounds"]) for key in ("ms", "gib"))
            predicted = row.get("predicted", {})
            tail = f"  predicted {predicted['ms']:.1f} ms {predicted['gib']:.2f} GiB" if predicted else ""
            print(f"{name:>16}  {ms:8.1f} ms  {gib:6.2f} GiB{tail}")


def _name(budget: float) -> str:
    return f"ours {budget:g} GiB"


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
    parser.add_argument("--no-hand", dest="hand", action="store_false", help="without the hand-made choices")
    parser.add_argument("--workers", type=int, default=0, help="processes that compile beforehand")
    parser.add_argument("--worker", type=int, help="be one of these")
    parser.add_argument("--warmed", action="store_true", help="they are done")
    parser.add_argument("--plan-only", action="store_true", help="write the plans")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=3600.0)
    args = parser.parse_args()
    if args.small:
        args.model, args.batch, args.rounds, args.steps = SMALL, 4, 1, 1
        args.budgets, args.rivals = "0.003,0.0019,0.0017", "eager,per-block,selective"
    args.hand = args.hand and args.model in (LLAMA, SMALL)
    backend = "nccl" if args.device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    bench = Bench(args)
    if args.plan_only:
        bench.plans()
    elif args.worker is not None:
        bench.warm(args.worker, args.workers)
    else:
        bench.run()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
