"""Weights in memory without holes, on a GPU whose allocator keeps segments.

A model that was built in float32 and cast, or whose weights were replaced by pieces one after the other, lies in
segments that are half free. Holes as small as a weight serve no activation, and a segment with a weight in it is never
given back: a budget loses them. Weights then go through the host: their segments are given back, and they come again
side by side in new ones.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")

MOST_BYTES, MOST_PART = 64 << 20, 0.01
"""Holes that are left as they are: so many bytes, or such a part of what the allocator has reserved."""


def holes_bytes(device: torch.device) -> int:
    """What the allocator holds in segments that are partly in use; it gives back the others first."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    found = torch.cuda.memory_stats(device)
    return int(found["reserved_bytes.all.current"] - found["allocated_bytes.all.current"])


def too_many(holes: int, reserved: int) -> bool:
    return holes > max(MOST_BYTES, int(MOST_PART * reserved))


def has_holes(device: torch.device) -> bool:
    """Whether weights of this device should be packed."""
    return device.type == "cuda" and too_many(holes_bytes(device), torch.cuda.memory_reserved(device))


def packed(held: dict[Key, Tensor], device: torch.device) -> dict[Key, Tensor]:
    """The same tensors in new memory. Empties `held`, which has the only references to their old memory."""
    there = {key: tensor.to("cpu", copy=True) for key, tensor in held.items()}
    held.clear()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return {key: there.pop(key).to(device) for key in list(there)}


def part_of(flat: Tensor, view: Tensor) -> Tensor:
    """A view of some of a tensor's memory as a tensor whose storage is that part alone. What copies or saves tensors
    asks for their storage and for where they begin in it, and takes parts of one storage for tied weights."""
    if not view.numel():
        return view
    first = view.storage_offset() * view.element_size()
    part = flat.untyped_storage()[first : first + view.nbytes]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(part, 0, view.size(), view.stride())
