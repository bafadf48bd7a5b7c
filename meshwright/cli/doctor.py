"""`meshwright doctor`: what is installed, what was found here, and what will work."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from meshwright import __version__
from meshwright.models.arguments import add_json, check_folder, write_json

Row = tuple[str, bool | None, str]
"""What, whether it works (None: it is missing and is not needed), and what was found."""

OPTIONAL = {"transformers": "hf: models", "numba": "faster selection on large problems", "safetensors": "exports"}
TORCH = ((2, 11), (2, 14))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "the checks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 where everything that is needed works, 1 where something does not."""
    check_folder("--json", args.json)
    rows = [row for check in CHECKS for row in _tried(check)]
    if args.json != "-":
        for what, works, found in rows:
            mark = {True: "ok     ", False: "BROKEN ", None: "missing"}[works]
            print(f"{mark}  {what:<22} {found}")
    if args.json:
        write_json(args.json, json.dumps([{"what": a, "works": b, "found": c} for a, b, c in rows], indent=1))
    return 1 if any(works is False for _, works, _ in rows) else 0


def _tried(check: Callable[[], list[Row]]) -> list[Row]:
    try:
        return check()
    except Exception as error:  # whatever it is, the doctor says it
        return [(check.__name__.strip("_").replace("_", " "), False, f"{type(error).__name__}: {error}")]


def _installation() -> list[Row]:
    rows: list[Row] = [("meshwright", True, f"{__version__}, Python {platform.python_version()}")]
    for name in ("torch", "numpy", "highspy", "msgspec", "rich"):
        try:
            rows.append((name, True, version(name)))
        except PackageNotFoundError:
            rows.append((name, False, "not installed: pip install meshwright"))
    for name, use in OPTIONAL.items():
        there = find_spec(name) is not None
        rows.append((name, True if there else None, version(name) if there else f"for {use}"))
    return rows


def _torch_version() -> list[Row]:
    import torch

    have = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    least, below = TORCH
    supported = f"supported: {least[0]}.{least[1]} to {below[0]}.{below[1] - 1}"
    return [("torch is supported", least <= have < below, f"{torch.__version__}; {supported}")]


def _private_names() -> list[Row]:
    """Everything that we use of torch's own is there: importing it says so."""
    from meshwright import torch_compat

    return [("torch's private names", True, f"{len(vars(torch_compat))} names of torch_compat import")]


def _devices() -> list[Row]:
    import torch

    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(place) for place in range(count)]
    shown = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return [("GPUs", True if count else None, shown or "none: plans for GPUs are made here, and run elsewhere")]


def _backends() -> list[Row]:
    import torch.distributed as dist

    nccl = dist.is_nccl_available()
    return [
        ("gloo", dist.is_gloo_available(), "processes on CPUs"),
        ("nccl", True if nccl else None, "processes on GPUs" if nccl else "this torch was built without it"),
    ]


def _a_small_plan() -> list[Row]:
    """Capture, planning and one step, against plain PyTorch."""
    import torch
    from torch import nn

    from meshwright.api import plan
    from meshwright.runtime.trainer import parallelize

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), torch.randn(4, 8)

    def loss(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (y - x).square().mean()

    wanted = loss(model(x), x).item()
    trainer = parallelize(model, plan(model, (x,), cluster="local:1", loss=loss), loss)
    found = trainer.step((x,)).item()
    return [("a planned step", abs(found - wanted) < 1e-6, f"loss {found:.6f}, plain PyTorch {wanted:.6f}")]


CHECKS = (_installation, _torch_version, _private_names, _devices, _backends, _a_small_plan)
