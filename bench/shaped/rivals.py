"""Rivals of a plan, as their users write them: torch DDP, FSDP2, DTensor tensor parallelism; each over its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

Step = Callable[[], float]
MICRO = (1, 2)
BUCKETS_MB = (1, 25)


def rivals(build: Callable[[], Any], whole: dict[str, Any], rank: int, world: int) -> Iterator[tuple[str, Step]]:
    """Named steps, all on the same ranks; `build` gives a model with the same weights each time."""
    batch = next(iter(whole.values())).shape[0]
    part = {name: tensor[rank * batch // world : (rank + 1) * batch // world] for name, tensor in whole.items()}
    micro = [m for m in MICRO if batch % (world * m) == 0]
    for bucket_mb in BUCKETS_MB:
        model = _ddp(build(), bucket_mb)
        yield from _over_micro(f"torch DDP, {bucket_mb} MB buckets", model, model.no_sync, part, micro)
    for reshard in (True, False):
        model = _fsdp(build(), reshard)
        yield from _over_micro(f"FSDP2{'' if reshard else ' kept'}", model, _fsdp_no_sync(model), part, micro)
    model = _tensor_parallel(build(), world)
    yield from _over_micro("DTensor TP", model, nullcontext, whole, micro)


def _over_micro(name: str, model: Any, no_sync: Any, part: dict[str, Any], micro: list[int]) -> Iterator[Any]:
    """Gradients are summed over micro-batches and reduced with the last one."""
    import torch
    from torch.distributed.tensor import DTensor

    parameters = list(model.parameters())
    kinds = [[p for p in parameters if isinstance(p, DTensor) == sharded] for sharded in (True, False)]
    optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds if kind], lr=1e-4, fused=True)

    def step(count: int) -> float:
        cut = zip(*(tensor.chunk(count) for tensor in part.values()), strict=True)
        pieces = [dict(zip(part, rows, strict=True)) for rows in cut]
        loss = 0.0
        for number, piece in enumerate(pieces):
            with no_sync() if number < count - 1 else nullcontext():
                found = model(**piece) / count
                found.backward()
            loss += found.item()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for count in micro:
        yield f"{name}, {count} micro-batches" if count > 1 else name, lambda count=count: step(count)


def _ddp(model: Any, bucket_mb: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)


def _fsdp(model: Any, reshard: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard)
    return fully_shard(model)


def _fsdp_no_sync(model: Any) -> Callable[[], Any]:
    from contextlib import contextmanager

    @contextmanager
    def unsynced() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    return unsynced


def _tensor_parallel(model: Any, world: int) -> Any:
    """Column then row in every block, as the tutorial of `parallelize_module` does it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers:
        plan: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
        layer.attention.forward = _local_heads(layer.attention, layer.attention.heads // world)
    return model


def _local_heads(attention: Any, heads: int) -> Callable[[Any], Any]:
    import torch.nn.functional as F

    def forward(x: Any) -> Any:
        batch, seq, _ = x.shape
        query, key, value = (
            layer(x).view(batch, seq, heads, -1).transpose(1, 2)
            for layer in (attention.query, attention.key, attention.value)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=attention.causal)
        return attention.out(y.transpose(1, 2).reshape(batch, seq, -1))

    return forward
