"""`torchrun ... -m meshwright selftest`: what to run first on a new cluster.

Every collective against its closed form, with its rate; one planned step against the plain model on every rank; the
step's time against the prediction.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshwright.errors import RunError
from meshwright.models.arguments import add_json, check_folder, write_json

if TYPE_CHECKING:
    import torch
    from torch import nn

Row = dict[str, Any]
STEPS = 5
MODEL = "gpt?layers=2&hidden=128&heads=4&ffn=512&vocab=256&seq=64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=4, metavar="N", help="of each collective (default 4)")
    add_json(parser, "the checks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 where all is right on every rank, 1 where something is not."""
    check_folder("--json", args.json)
    if "RANK" not in os.environ:
        raise RunError(
            "selftest without torchrun", "several processes", "torchrun --nproc-per-node=2 -m meshwright selftest"
        )
    if args.megabytes < 1:
        raise RunError(f"--megabytes {args.megabytes}", "at least 1", "give a larger number")
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # names of collectives that torch 2.13 has newer ones for
            rows = _collectives(device, args.megabytes)
        rows += _step(device)
        return _report(args, _everywhere(rows, device))
    finally:
        dist.destroy_process_group()


def _report(args: argparse.Namespace, rows: list[Row]) -> int:
    if os.environ["RANK"] == "0":
        if args.json != "-":
            for row in rows:
                print(f"{'ok    ' if row['right'] else 'WRONG '}  {row['what']:<16} {row['found']}")
        if args.json:
            write_json(args.json, json.dumps(rows, indent=1))
    return 0 if all(row["right"] for row in rows) else 1


def _everywhere(rows: list[Row], device: torch.device) -> list[Row]:
    """Right where it is right on every rank."""
    import torch
    import torch.distributed as dist

    right = torch.tensor([float(row["right"]) for row in rows], device=device)
    dist.all_reduce(right, dist.ReduceOp.MIN)
    return [row | {"right": bool(one)} for row, one in zip(rows, right.tolist(), strict=True)]


def _collectives(device: torch.device, megabytes: int) -> list[Row]:
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    size = world * max(1, megabytes * (1 << 18) // world)
    mine = torch.full((size,), float(rank + 1), device=device)
    part, total = size // world, world * (world + 1) / 2
    counted = torch.arange(1.0, world + 1, device=device)
    whole, piece = torch.empty(size * world, device=device), torch.empty(part, device=device)
    moved, sent = torch.empty(size, device=device), mine.clone()
    calls: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
        "all-reduce": (lambda: dist.all_reduce(sent.copy_(mine)), lambda: bool((sent == total).all())),
        "all-gather": (
            lambda: dist.all_gather_into_tensor(whole, mine),
            lambda: bool((whole.view(world, size) == counted[:, None]).all()),
        ),
        "reduce-scatter": (lambda: dist.reduce_scatter_tensor(piece, mine), lambda: bool((piece == total).all())),
        "all-to-all": (
            lambda: dist.all_to_all_single(moved, mine),
            lambda: bool((moved.view(world, part) == counted[:, None]).all()),
        ),
    }
    rows = []
    for name, (call, right) in calls.items():
        seconds = _timed(call, device)
        rate = 4 * size / seconds / 1e9
        rows.append(
            {
                "what": name,
                "right": right(),
                "found": f"{4 * size >> 20} MiB in {seconds * 1e3:.2f} ms, {rate:.2f} GB/s",
            }
        )
    return rows


def _timed(call: Callable[[], Any], device: torch.device) -> float:
    """The best of a few, the first aside."""
    import torch

    best = float("inf")
    for number in range(STEPS + 1):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began) if number else best
    return best


def _step(device: torch.device) -> list[Row]:
    """A fully sharded step: its loss and gradients against the plain model's on this rank."""
    import torch
    import torch.distributed as dist

    from meshwright.api import plan
    from meshwright.cli.options import gpus_named
    from meshwright.cluster import load_cluster
    from meshwright.models.reference import parse_reference
    from meshwright.runtime.trainer import parallelize

    world = dist.get_world_size()
    torch.manual_seed(0)
    reference = parse_reference(MODEL)
    model = reference.build().to(device)
    batch = {name: torch.randint(256, shape, device=device) for name, (shape, _) in reference.shapes(2 * world).items()}
    cuda = device.type == "cuda"
    cluster = gpus_named([torch.cuda.get_device_name(device)] * world) if cuda else load_cluster(f"local:{world}")
    pins = ("pp=1", f"dp={world}", "zero=3") if world > 1 else ()
    made = plan(model, batch, cluster, pins=pins)
    plain = copy.deepcopy(model)
    wanted = plain(**batch)
    wanted.backward()
    trainer = parallelize(model, made)
    found = trainer.step(batch, global_batch=True)
    apart = abs(found.item() - wanted.item())
    worst, where = _apart(model, plain)
    seconds = _timed(lambda: trainer.step(batch, global_batch=True), device)
    said = made.predicted.step_s - made.predicted.optimizer_s
    return [
        {"what": "loss", "right": apart < 1e-4, "found": f"{found.item():.6f}, plain model {wanted.item():.6f}"},
        {"what": "gradients", "right": worst < 1e-4, "found": f"{worst:.1e} apart at most, in {where}"},
        {"what": "step", "right": True, "found": f"{seconds * 1e3:.2f} ms, predicted {said * 1e3:.2f} ms"},
    ]


def _apart(model: nn.Module, plain: nn.Module) -> tuple[float, str]:
    """The largest difference of a gradient, as a share of its largest element, and whose it is. Gradients that are
    zero but for rounding (of keys' biases) are held against the largest of all."""
    grads = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    least = 1e-3 * max(grad.abs().max().item() for grad in grads.values())
    found = [(0.0, "none")]
    for name, own in grads.items():
        grad: Any = model.get_parameter(name).grad
        whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        found.append(((whole - own).abs().max().item() / max(least, own.abs().max().item()), name))
    return max(found)
