"""A model's outputs from an adopted model: of this rank's samples, or of samples that ranks share out among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.capture.precision import COMPUTES
from meshwright.errors import RunError
from meshwright.models.batch import batch_names, for_the_loss

Loss = Callable[..., Tensor] | None
_PLAIN = (bool, int, float, str, type(None))


def arguments(model: nn.Module, batch: object, loss: Loss) -> dict[str, Any]:
    """What of a batch the model's forward takes, by name; the rest is for the loss function."""
    if isinstance(batch, Mapping):
        named = dict(batch)
    else:
        given = batch if isinstance(batch, tuple | list) else (batch,)
        named = dict(zip(batch_names(model, loss, len(given)), given, strict=False))
    targets = for_the_loss(model, named) if loss is not None else ()
    return {name: entry for name, entry in named.items() if name not in targets}


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def map_tree(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Through dicts, lists, tuples and what derives from them (`ModelOutput`, named tuples)."""
    if isinstance(tree, Mapping):
        found = {key: map_tree(item, change) for key, item in tree.items()}
        return found if type(tree) is dict else type(tree)(**found)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tree(item, change) for item in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map_tree(item, change) for item in tree)
    return change(tree)


def caster(device: torch.device, precision: str) -> Callable[[Any], Any]:
    """Tensors of a batch where and in which dtype a step has them."""
    half = COMPUTES.get(precision)

    def cast(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        return item.to(device, half if item.is_floating_point() else None)

    return lambda tree: map_tree(tree, cast)


def shared_out(run: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
    """Each rank runs its share of the rows; every one of them gets all outputs."""
    rows = _rows(given)
    size, rank = dist.get_world_size(), dist.get_rank()
    places = [part.tolist() for part in torch.tensor_split(torch.arange(rows), size)]
    own = places[rank] or [0]  # a rank without a row runs one in vain: all take part in gathering weights
    first, last = own[0], own[-1] + 1

    def part(item: Any) -> Any:
        return item[first:last] if isinstance(item, Tensor) and item.dim() and item.shape[0] == rows else item

    found = run(map_tree(given, part))

    def joined(item: Any) -> Any:
        if isinstance(item, _PLAIN):
            return item
        if not isinstance(item, Tensor) or not item.dim() or item.shape[0] != last - first:
            kind = f"a tensor of shape {tuple(item.shape)}" if isinstance(item, Tensor) else f"a {type(item).__name__}"
            raise RunError(
                f"an output that is {kind}, of {last - first} samples",
                "outputs with a row for each sample, where ranks share the samples",
                "leave out what makes it (labels=, use_cache=True), or call trainer(batch): each rank runs all samples",
            )
        return torch.cat(_every(item, [len(place) for place in places]))

    return map_tree(found, joined)


def _rows(given: dict[str, Any]) -> int:
    sizes: list[int] = []
    map_tree(given, lambda item: sizes.append(item.shape[0]) if isinstance(item, Tensor) and item.dim() else None)
    if not sizes:
        raise RunError("a batch without tensors", "tensors with a row for each sample", "give one")
    return max(sizes, key=lambda size: (sizes.count(size), size))


def _every(item: Tensor, counts: list[int]) -> list[Tensor]:
    """All ranks' rows, of which each has so many."""
    most = max(counts)
    room = item.new_zeros((most, *item.shape[1:]))
    room[: min(most, item.shape[0])] = item
    found = [torch.empty_like(room) for _ in counts]
    dist.all_gather(found, room)
    return [rows[:count] for rows, count in zip(found, counts, strict=True)]
