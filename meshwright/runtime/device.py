"""Where a rank computes."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from meshwright.errors import RunError
from meshwright.torch_compat import expandable_segments


def own_device(kind: str | None = None) -> torch.device:
    """This rank's; several ranks share a GPU where there are more of them. None: CUDA unless the backend is gloo."""
    if kind not in (None, "cpu", "cuda"):
        raise RunError(f"device {kind!r}", "cpu or cuda", "name one of these")
    here = torch.cuda.is_available()
    if kind == "cuda" and not here:
        raise RunError("device 'cuda', and torch sees no GPU", "a GPU", "pass device='cpu', or leave it out")
    if kind == "cpu" or not here or (kind is None and dist.get_backend() == "gloo"):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    expandable_segments()  # before weights are moved there: segments of fixed sizes lose a tenth of a tight budget
    return device
