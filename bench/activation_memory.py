"""Step time and real peak memory of a language model under budgets: ours and its rivals, on one GPU.

    python bench/activation_memory.py --json out/activation_memory.json          # the Llama-like LM, all rivals
    python bench/activation_memory.py --model "gpt2-medium?dropout=0" --batch 16 --budgets 40,20,14
    python bench/activation_memory.py --small --device cpu                        # a dry run of everything, seconds

Every rival and every budget of ours runs in each of three rounds, one after the other; the figures are medians over
the rounds of the mean of `--steps` steps (zero_grad, forward, backward, AdamW). Peak: torch.cuda.max_memory_allocated
over these steps. A budget of ours is planned with `--margin` less than it, and run with the allocator's limit
(torch.cuda.set_per_process_memory_fraction) set to it: a step that needs more fails. `--plans FOLDER` writes the
plans, and reads those that are there. `--seconds` ends the run after so long; what was measured by then is written.
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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshwright.capture import capture
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.runtime.fit import fit_curves, this_device
from meshwright.runtime.sources import weights_of
from meshwright.runtime.trainer import Settings, Trainer
from meshwright.solve.memory_plan import Curves

GIB = 1 << 30
LLAMA = "llama?layers=16&hidden=2048&heads=16&kv_heads=16&ffn=5376&vocab=32000&seq=2048&tied=false"
SMALL = "llama?layers=3&hidden=64&heads=4&kv_heads=4&ffn=128&vocab=256&seq=32&tied=false"
BUDGETS = "48,40,32,30,25,20,14,11,10"
RIVALS = ("eager", "per-block", "selective", "compile", "compile 0.75", "compile 0.5", "compile 0.25", "compile 0.1")
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)

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

    def _tensor(self, shape: tuple[int, ...], kind: str) -> Tensor:
        if kind.startswith("int"):
            return torch.randint(0, 10, shape, device=self.device)
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

    def left_s(self) -> float:
        return float(self.args.seconds - (time.monotonic() - self.start))

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        with self.device:
            return self.reference.build().to(torch.bfloat16).train()

    @cached_property
    def curves(self) -> Curves:
        before = time.process_time()
        program = capture(*self.reference.meta(self.args.batch), precision="bf16")
        between = time.process_time()
        found = fit_curves(program, this_device(), precision="bf16", compile=self.args.compile)
        after = time.process_time()
        print(f"captured in {between - before:.1f} CPU s, curves in {after - between:.1f}", flush=True)
        return found

    @contextmanager
    def rival(self, name: str) -> Iterator[Step]:
        model = self.model()
        if name in ("per-block", "selective"):
            _checkpointed(model, selective=name == "selective")
        run: Any = model
        if name.startswith("compile"):
            share = name.partition(" ")[2]
            torch._functorch.config.activation_memory_budget = float(share or 1.0)
            torch._dynamo.reset()
            run = torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = run(**self.batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        yield step
        torch._functorch.config.activation_memory_budget = 1.0

    @contextmanager
    def ours(self, budget: float) -> Iterator[Step]:
        plan = self.plan(budget)
        weights = weights_of(self.model(), None, 0, self.device)
        settings = Settings(compiled=self.args.compile)
        trainer = Trainer(weights, plan, self.curves.program, self.device, settings)
        del weights  # and with them the model they were copied from
        optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-5, fused=True)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = trainer.step(self.batch)
            optimizer.step()
            return loss

        self.rows.setdefault(_name(budget), {})["predicted"] = {
            "ms": plan.predicted.step_s * 1e3,
            "gib": plan.predicted.peak_bytes / GIB,
        }
        yield step

    def plan(self, budget: float) -> Plan:
        folder = Path(self.args.plans) if self.args.plans else None
        path = folder / f"{budget:g}.json" if folder else None
        if path is not None and path.exists():
            return Plan.load(path)
        least = self.curves.least_bytes
        plan = self.curves.within(max(int(budget * GIB * (1 - self.args.margin)), min(least, int(budget * GIB))))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            plan.save(path)
        return plan

    def measure(self, name: str, make: Callable[[], Any], limit_gib: float | None) -> None:
        row = self.rows.setdefault(name, {})
        if "error" in row:
            return
        try:
            with make() as step:
                row.setdefault("rounds", []).append(self._time(step, limit_gib))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:400]
        self._clean()
        self.write()
        print(name, json.dumps(row)[:300], f"{self.left_s():.0f} s left", flush=True)

    def _time(self, step: Step, limit_gib: float | None) -> dict[str, float]:
        cuda = self.device.type == "cuda"
        if cuda and limit_gib is not None:
            self._clean()
            whole = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_gib * GIB / whole))
        try:
            for _ in range(2):
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
        budgets = [float(text) for text in self.args.budgets.split(",") if text]
        rivals = [name for name in self.args.rivals.split(",") if name]
        for _ in range(self.args.rounds):
            for budget in budgets:
                if self.left_s() > 10:
                    self.measure(_name(budget), partial(self.ours, budget), budget if self.args.limit else None)
            for name in rivals:
                if self.left_s() > 10:
                    self.measure(name, partial(self.rival, name), None)
        self.show()

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


def _checkpointed(model: nn.Module, selective: bool) -> None:
    """Checkpoint every block; keep what products and attention make where `selective`."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op in PRODUCTS or "attention" in str(op)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    options: dict[str, Any] = {"use_reentrant": False}
    if selective:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for block in module:
                block.forward = partial(checkpoint, block.forward, **options)  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=LLAMA)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--budgets", default=BUDGETS, help="GiB, by commas")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--margin", type=float, default=0.03, help="part of a budget that is left to the allocator")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-limit", dest="limit", action="store_false", help="do not set the allocator's limit")
    parser.add_argument("--small", action="store_true", help="a small model, to try it out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plans", help="a folder of plans")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=3600.0)
    args = parser.parse_args()
    if args.small:
        args.model, args.batch, args.rounds, args.steps = SMALL, 4, 1, 1
        args.budgets, args.rivals = "0.003,0.0019,0.0017", "eager,per-block,selective"
    backend = "nccl" if args.device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    Bench(args).run()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
