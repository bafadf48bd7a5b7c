"""Profile: what an op costs, in FLOPs and bytes, and what its backward keeps. Pure arithmetic on types."""

from meshwright.profile.count import (
    backward_bytes,
    backward_flops,
    backward_flops_by_operand,
    forward_flops,
    is_view,
    op_bytes,
    op_kind,
)
from meshwright.profile.saved import Saved, saved

__all__ = [
    "Saved",
    "backward_bytes",
    "backward_flops",
    "backward_flops_by_operand",
    "forward_flops",
    "is_view",
    "op_bytes",
    "op_kind",
    "saved",
]
