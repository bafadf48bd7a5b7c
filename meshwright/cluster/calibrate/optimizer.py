"""What AdamW takes: foreach and fused on plain tensors, and fused on the pieces of DTensors that a trainer gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from meshwright.cluster.calibrate.grids import Rates, short, text_of
from meshwright.cluster.calibrate.pace import Pace
from meshwright.torch_compat import dtensor_like, local_tensor

FEW, MANY, LARGE = 16, 128, 1 << 22
"""Tensors, and elements of a large one."""
Wrap = Callable[[Tensor], Tensor]


def optimizers(
    rates: Rates, sizes: Sequence[int], dtypes: Sequence[torch.dtype], pace: Pace | None
) -> dict[str, dict[str, Any]]:
    """By name: host seconds of a step, fixed and for each tensor; the device's for each, and over parameter bytes."""
    found = {
        "adamw.foreach": _cost(rates, sizes, dtypes, pace, {"foreach": True}),
        "adamw.fused": _cost(rates, sizes, dtypes, pace, {"fused": True}),
    }
    with _one_rank(rates.device) as wrap:
        if wrap is not None:
            gradient_s, swap_s = _handed_s(rates, pace, wrap)
            fused = found["adamw.fused"]
            each = {"tensor_s": short(fused["tensor_s"] + swap_s), "gradient_s": gradient_s}
            found["adamw.sharded"] = fused | each
    return found


def scale_to_a_step(costs: dict[str, dict[str, Any]], fixed_s: float, tensor_s: float) -> None:
    """In the midst of a step the host needs longer than when it does nothing else: as much as foreach does there."""
    loop = costs["adamw.foreach"]
    fixed, each = fixed_s / max(loop["fixed_s"], 1e-7), tensor_s / max(loop["tensor_s"], 1e-8)
    for cost in costs.values():
        cost["fixed_s"] = short(fixed * cost["fixed_s"])
        for name in ("tensor_s", "byte_s"):
            cost[name] = short(each * cost[name])
        if "gradient_s" in cost:
            cost["gradient_s"] = short(each * cost["gradient_s"])


def _cost(
    rates: Rates, sizes: Sequence[int], dtypes: Sequence[torch.dtype], pace: Pace | None, options: dict[str, bool]
) -> dict[str, Any]:
    found: dict[str, Any] = _each(rates, pace, options)
    curves: dict[str, list[list[float]]] = {}
    for dtype in dtypes:
        for n_bytes in sizes:
            count = n_bytes // dtype.itemsize
            each = min(count, 1 << 22)
            number = max(1, count // each)
            device_s = rates.clock.device_s(_step(rates.device, [each] * number, dtype, options))
            row = [number * each * dtype.itemsize, short(max(device_s - number * found["tensor_device_s"], 1e-7))]
            curves.setdefault(text_of(dtype), []).append(row)
    return found | {"curves": curves}


def _each(rates: Rates, pace: Pace | None, options: dict[str, bool]) -> dict[str, float]:
    few, many = (_step(rates.device, [1024] * n, torch.float32, options) for n in (FEW, MANY))
    few_s = many_s = large_s = 0.0
    if pace is not None:
        large = _step(rates.device, [LARGE] * FEW, torch.float32, options)
        ratios = pace.paced(lambda: [rates.clock.host_s(run, 20) * 20 for run in (few, many, large)], 5)
        few_s, many_s, large_s = (pace.usual_s * ratio for ratio in ratios)
    tensor_s = max(0.0, (many_s - few_s) / (MANY - FEW))
    device_s = max(0.0, (rates.clock.device_s(many) - rates.clock.device_s(few)) / (MANY - FEW))
    return {
        "fixed_s": short(max(0.0, few_s - FEW * tensor_s)),
        "tensor_s": short(tensor_s),
        "byte_s": short(max(0.0, large_s - few_s) / (4 * LARGE * FEW)),
        "tensor_device_s": short(device_s),
    }


def _handed_s(rates: Rates, pace: Pace | None, wrap: Wrap) -> tuple[float, float]:
    """Host seconds of handing a gradient to a parameter as a DTensor, and of swapping its shard in for a step and
    back, as trainers do; on a CPU, all there is."""
    parameter = nn.Parameter(wrap(torch.randn(1024, device=rates.device)))
    piece = nn.Parameter(torch.randn(1024, device=rates.device), requires_grad=False)
    local = torch.randn(1024, device=rates.device)

    def hand() -> None:
        for _ in range(FEW):
            parameter.grad = dtensor_like(local, parameter)

    def swap() -> None:
        for _ in range(FEW):
            piece.grad = local_tensor(parameter.grad)
            piece.grad = None

    hand()
    if pace is None:
        return short(rates.clock.device_s(hand) / FEW), 0.0
    found = pace.paced(lambda: [rates.clock.host_s(run, FEW) for run in (hand, swap)])
    return short(pace.usual_s * found[0]), short(pace.usual_s * found[1])


def _step(device: torch.device, sizes: list[int], dtype: torch.dtype, options: dict[str, bool]) -> Callable[[], Any]:
    parameters = [nn.Parameter(torch.randn(n, device=device).to(dtype)) for n in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.numel(), device=device).to(dtype)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, **options)  # type: ignore[arg-type]
    optimizer.step()
    return optimizer.step


@contextmanager
def _one_rank(device: torch.device) -> Iterator[Wrap | None]:
    """DTensors on a mesh of this process alone; None where it is part of a group already."""
    if dist.is_initialized():
        yield None
        return
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh(device.type, (1,))
        yield lambda tensor: DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    finally:
        dist.destroy_process_group()
