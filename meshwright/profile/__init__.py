"""Profile: what an op, a segment and a training step cost in FLOPs and bytes, and what backward keeps."""

from meshwright.profile.count import (
    backward_bytes,
    backward_flops,
    backward_flops_by_operand,
    forward_flops,
    is_view,
    op_bytes,
    op_kind,
)
from meshwright.profile.kept import Saved
from meshwright.profile.profile import Peak, Profile, SegmentProfile
from meshwright.profile.saved import saved
from meshwright.profile.step import profile_step

__all__ = [
    "Peak",
    "Profile",
    "Saved",
    "SegmentProfile",
    "backward_bytes",
    "backward_flops",
    "backward_flops_by_operand",
    "forward_flops",
    "is_view",
    "op_bytes",
    "op_kind",
    "profile_step",
    "saved",
]
