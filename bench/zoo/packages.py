"""What has to be done before a package of the zoo is imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch


def declare_vision_ops() -> None:
    """Lets `torchvision` import beside a torch without CUDA.

    Its published wheels for some machines hold CUDA code that such a torch cannot load; then its import fails on two
    ops that it registers shapes for. They are declared here, without kernels; no model of the zoo calls them.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return
    library = Path(found.origin).with_name("_C.so")
    try:
        torch.ops.load_library(library)
    except (ImportError, OSError):
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
