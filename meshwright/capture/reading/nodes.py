"""What an exported node says of itself: its module, its line in the model, whether it writes, why it is refused."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, fx

from meshwright.capture.tracing.lines import traced_line
from meshwright.errors import CaptureError
from meshwright.torch_compat import shares_storage

AUTOCAST_REGION = "wrap_with_autocast"


def changes_nothing(node: fx.Node, target: str, value: Any) -> bool:
    """A cast to the dtype a tensor already has hands on the tensor itself, and so does a slice of the whole: PyTorch
    makes none for the `:` of an index."""
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(source, Tensor):
        return False
    if target == "aten.slice.Tensor":
        return _is_whole(source, value, *node.args[1:])
    if not target.startswith(("aten.to.", "aten.alias.", "aten.type_as.")):
        return False
    return source.dtype == value.dtype and shares_storage(source, value)


def _is_whole(source: Tensor, value: Tensor, dim: Any = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    """Whether this slice has all of a dim, whatever its size."""
    if start not in (None, 0) or step != 1:
        return False
    sizes = source.shape[dim], value.shape[dim]
    return end is None or end == sys.maxsize or (all(type(size) is int for size in sizes) and sizes[0] == sizes[1])


def sized_by_data(node: fx.Node) -> CaptureError:
    where = f"{module_of(node) or 'the model'}{line_of(node)}"
    return CaptureError(
        f"{node.target} makes a tensor whose size depends on the data, in {where}",
        "sizes that follow from the shapes",
        "mask with `torch.where` instead of selecting, or pad to a fixed size",
    )


def tracked_instances(node: fx.Node) -> CaptureError:
    return CaptureError(
        f"InstanceNorm with running statistics in {module_of(node) or 'the model'}{line_of(node)}",
        "one whose forward changes no buffers",
        "make it with `track_running_stats=False`, or use BatchNorm",
    )


def unsupported(node: fx.Node) -> CaptureError:
    where = f"in {module_of(node) or 'the model'}{line_of(node)}"
    if str(node.target) == AUTOCAST_REGION:
        return CaptureError(
            f"torch.autocast {where}",
            "a forward that leaves dtypes to `precision`, or casts by itself",
            "take autocast out of the forward and capture with precision='mixed'",
        )
    return CaptureError(
        f"{node.target} {where}",
        "a forward of plain operators",
        "write it without `torch.func` and without control flow that torch keeps whole",
    )


def line_of(node: fx.Node) -> str:
    return traced_line(node.meta.get("stack_trace") or "")


def module_of(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()] if isinstance(stack, dict) else []
    return paths[-1].removeprefix("model").removeprefix(".") if paths and "_empty" not in paths[-1] else ""
