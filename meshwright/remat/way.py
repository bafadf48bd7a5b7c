"""The RematPoint of one Choice."""

from __future__ import annotations

from collections.abc import Collection

from meshwright.cost.traced.kernels import loaded
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import storage_bytes
from meshwright.generate.cut import cut_at
from meshwright.generate.joint import Joint
from meshwright.remat.curve import RematPoint, in_memory_anyway, measure


def cut_way(
    joint: Joint, costs: NodeCosts, recompute: tuple[str, ...], keep: tuple[str, ...], held: Collection[str] = ()
) -> RematPoint:
    """The RematPoint of a pair cut at a Choice. held: names of storages that another segment keeps in any case."""
    cut = cut_at(joint, recompute, keep, run=False)
    counted = set(cut.saved) - in_memory_anyway(joint) - set(held)
    kept = sum(storage_bytes(node) for node, name in joint.names.items() if name in counted)
    costs = loaded(joint.module, costs)
    return measure(joint, cut, costs, recompute=recompute, keep=keep, resident_bytes=kept, recompute_s=0.0)
