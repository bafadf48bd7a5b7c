"""Ops that read a tensor only for its shape or dtype are told these instead: who gives a shape need not be there."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.capture.program import Op, TorchConstant

_SHAPED = {
    "aten.view_as.default": "aten.view.default",
    "aten.reshape_as.default": "aten.reshape.default",
    "aten.expand_as.default": "aten.expand.default",
}
_TYPED = ("aten.type_as.default", "aten.to.other")


def without_lenders(ops: Iterable[Op]) -> list[Op]:
    """The same ops, with sizes and dtypes as literals where a second tensor stood for them."""
    return [_told(op) for op in ops]


def _told(op: Op) -> Op:
    made = op.results[0].type if op.results else None
    if made is not None and op.target in _SHAPED:
        return Op(_SHAPED[op.target], (op.args[0], made.shape), (), op.results, op.module)
    if made is not None and op.target in _TYPED and len(op.args) == 2 and not op.kwargs:
        return Op("aten.to.dtype", (op.args[0], TorchConstant(made.dtype)), (), op.results, op.module)
    return op
