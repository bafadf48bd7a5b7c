"""Random ops become ops that are handed a key: what they draw depends on seed, step and place, not on a generator.

Each kind is written out in ops that the rest of the system knows (`meshwright.dropout`, `meshwright.uniform`,
`meshwright.normal` and arithmetic). Attention with dropout becomes products, a softmax and a dropout between them:
the mask inside a fused kernel is not ours to make. A random op that is not listed here stays as it is, and the rules
refuse it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.capture.program import Op, Ref, RunDevice, TensorType, TorchConstant, Value
from meshwright.capture.sizes import BatchSize, Size

KEYS = "meshwright.capture.counter:keys"
KEY = TensorType((5,), "int64")
ATTENTION = "aten.scaled_dot_product_attention.default"
_SELU_SATURATION = -1.7580993408473766
"""What alpha dropout puts in place of an element: SELU's value far to the left."""


@dataclass(slots=True)
class _Writer:
    """Ops that take the place of one random op; `last` may carry the names of the results they stand for."""

    op: Op
    types: dict[str, Value]
    taken: set[str]
    key: Callable[[], Ref]
    made: list[Op] = field(default_factory=list)

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        return self.op.argument(position, name, default)

    def emit(self, target: str, args: tuple[Any, ...], type_: TensorType, *, grad: bool = False, **kwargs: Any) -> Ref:
        stem = f"{self.op.name}_{target.split('.')[1]}"
        name, count = stem, 0
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        value = Value(name, type_, grad)
        self.types[name] = value
        self.made.append(Op(target, args, tuple(kwargs.items()), (value,), self.op.module))
        return Ref(name)

    def named(self) -> list[Op]:
        """The ops, the last one under the name and type of the result that it stands for."""
        *before, last = self.made
        return [*before, replace(last, results=self.op.results)]

    def value(self, ref: Ref) -> Value:
        return self.types[ref.name]


def keyed(ops: Sequence[Op], values: dict[str, Value]) -> tuple[list[Op], tuple[str, ...]]:
    """The same program without draws, and notes about it. `values`: every value by name."""
    types, taken, names = dict(values), set(values), list[str]()
    found: list[Op] = []
    notes: list[str] = []

    def key() -> Ref:
        names.append(f"random_key_{len(names)}")
        return Ref(names[-1])

    for op in ops:
        write = _WRITERS.get(op.target)
        writer = _Writer(op, types, taken, key)
        if write is None or not write(writer):
            found.append(op)
            continue
        found += writer.named()
        if op.target == ATTENTION:
            notes.append(f"{op.module or op.name}: attention with dropout is not fused, its probabilities are kept")
    if not names:
        return list(ops), ()
    made = Op(KEYS, (len(names), RunDevice()), (), tuple(Value(name, KEY) for name in names))
    return [made, *found], tuple(notes)


def _dropout(w: _Writer) -> bool:
    p = float(w.arg(1, "p"))
    if not w.arg(2, "train") or p == 0:
        return False
    w.emit("meshwright.dropout.default", (w.op.args[0], w.key(), p), w.op.results[0].type)
    return True


def _feature_dropout(w: _Writer) -> bool:
    """One draw per sample and channel."""
    x, p = w.op.args[0], float(w.arg(1, "p"))
    if not w.arg(2, "train") or p == 0:
        return _nothing(w)
    type_ = w.value(x).type
    ones = TensorType((*type_.shape[:2], *((1,) * (len(type_.shape) - 2))), type_.dtype)
    made = w.emit("aten.ones.default", (ones.shape,), ones, dtype=TorchConstant(type_.dtype), device=RunDevice())
    mask = w.emit("meshwright.dropout.default", (made, w.key(), p), ones)
    w.emit("aten.mul.Tensor", (x, mask), type_)
    return True


def _alpha_dropout(w: _Writer) -> bool:
    """Dropped elements take SELU's saturation value; scale and shift keep mean and variance."""
    x, p = w.op.args[0], float(w.arg(1, "p"))
    if not w.arg(2, "train") or p == 0:
        return _nothing(w)
    type_, grad = w.value(x).type, w.value(x).grad
    keep = w.emit("aten.ge.Scalar", (_uniform(w, type_), p), TensorType(type_.shape, "bool"))
    kept = w.emit("aten.where.ScalarOther", (keep, x, _SELU_SATURATION), type_, grad=grad)
    scale = ((1 - p) * (1 + p * _SELU_SATURATION**2)) ** -0.5 if p < 1 else 0.0
    scaled = w.emit("aten.mul.Tensor", (kept, scale), type_, grad=grad)
    w.emit("aten.add.Tensor", (scaled, -scale * p * _SELU_SATURATION), type_)
    return True


def _nothing(w: _Writer) -> bool:
    """A dropout that is off hands its operand on."""
    w.emit("aten.alias.default", (w.op.args[0],), w.op.results[0].type)
    return True


def _uniform(w: _Writer, type_: TensorType) -> Ref:
    dtype = type_.dtype if type_.is_float else "float32"
    made = TensorType(type_.shape, dtype)
    return w.emit("meshwright.uniform.default", (w.key(), type_.shape, TorchConstant(dtype)), made)


def _rand(w: _Writer) -> bool:
    _uniform(w, w.op.results[0].type)
    return True


def _randn(w: _Writer) -> bool:
    type_ = w.op.results[0].type
    w.emit("meshwright.normal.default", (w.key(), type_.shape, TorchConstant(type_.dtype)), type_)
    return True


def _normal_like(w: _Writer) -> bool:
    """`normal_(mean, std)` in its form that writes to nothing."""
    type_ = w.op.results[0].type
    drawn = w.emit("meshwright.normal.default", (w.key(), type_.shape, TorchConstant(type_.dtype)), type_)
    scaled = w.emit("aten.mul.Tensor", (drawn, float(w.arg(2, "std", 1.0))), type_)
    w.emit("aten.add.Tensor", (scaled, float(w.arg(1, "mean", 0.0))), type_)
    return True


def _uniform_like(w: _Writer) -> bool:
    type_, low, high = w.op.results[0].type, float(w.arg(1, "from", 0.0)), float(w.arg(2, "to", 1.0))
    scaled = w.emit("aten.mul.Tensor", (_uniform(w, type_), high - low), type_)
    w.emit("aten.add.Tensor", (scaled, low), type_)
    return True


def _bernoulli(w: _Writer) -> bool:
    """One where a uniform number is below the probability: a number, or the operand's own elements."""
    type_, p = w.op.results[0].type, w.arg(1, "p", None)
    drawn, truth = _uniform(w, type_), TensorType(type_.shape, "bool")
    below = (
        w.emit("aten.lt.Scalar", (drawn, float(p)), truth)
        if isinstance(p, float | int)
        else w.emit("aten.lt.Tensor", (drawn, w.op.args[0]), truth)
    )
    w.emit("aten.to.dtype", (below, TorchConstant(type_.dtype)), type_)
    return True


def _attention(w: _Writer) -> bool:
    """Products with a softmax and a dropout between; a row that may see nothing sees everything alike."""
    p = float(w.arg(4, "dropout_p", 0.0))
    if p == 0:
        return False
    query, key, value = w.op.args[:3]
    q, kt, mask = w.value(query).type, w.value(key).type, w.arg(3, "attn_mask")
    scale = w.arg(6, "scale") or _width(q) ** -0.5
    if w.arg(7, "enable_gqa", False) and kt.shape[-3] != q.shape[-3]:
        key, value = (_repeated(w, ref, q.shape[-3]) for ref in (key, value))
        kt = w.value(key).type
    grad = any(w.value(ref).grad for ref in (query, key))
    scaled = w.emit("aten.mul.Tensor", (query, float(scale)), q, grad=w.value(query).grad)
    turned = TensorType((*kt.shape[:-2], kt.shape[-1], kt.shape[-2]), kt.dtype)
    keys = w.emit("aten.transpose.int", (key, -2, -1), turned, grad=w.value(key).grad)
    type_ = TensorType((*q.shape[:-1], kt.shape[-2]), q.dtype)
    scores = w.emit("aten.matmul.default", (scaled, keys), type_, grad=grad)
    if isinstance(mask, Ref):
        scores = _masked(w, scores, mask, type_)
    if w.arg(5, "is_causal", False):
        scores = _causal(w, scores, type_)
    grad = w.value(scores).grad
    made = w.emit("aten.softmax.int", (scores, -1), type_, grad=grad)
    dropped = w.emit("meshwright.dropout.default", (made, w.key(), p), type_, grad=grad)
    w.emit("aten.matmul.default", (dropped, value), w.op.results[0].type)
    return True


def _width(type_: TensorType) -> int:
    width = type_.shape[-1]
    assert not isinstance(width, BatchSize)
    return width


def _repeated(w: _Writer, ref: Ref, heads: Size) -> Ref:
    type_ = w.value(ref).type
    assert isinstance(heads, int)
    shape = (*type_.shape[:-3], heads, *type_.shape[-2:])
    copies = heads // int(type_.shape[-3])  # type: ignore[arg-type]
    made = TensorType(shape, type_.dtype)
    return w.emit("aten.repeat_interleave.self_int", (ref, copies, -3), made, grad=w.value(ref).grad)


def _masked(w: _Writer, scores: Ref, mask: Ref, type_: TensorType) -> Ref:
    held, grad = w.value(mask), w.value(scores).grad
    if held.type.dtype == "bool":
        return w.emit("aten.where.ScalarOther", (mask, scores, _lowest(type_)), type_, grad=grad)
    return w.emit("aten.add.Tensor", (scores, mask), type_, grad=grad or held.grad)


def _causal(w: _Writer, scores: Ref, type_: TensorType) -> Ref:
    seen = TensorType(type_.shape[-2:], "bool")
    ones = w.emit("aten.ones.default", (seen.shape,), seen, dtype=TorchConstant("bool"), device=RunDevice())
    mask = w.emit("aten.tril.default", (ones,), seen)
    return w.emit("aten.where.ScalarOther", (mask, scores, _lowest(type_)), type_, grad=w.value(scores).grad)


def _lowest(type_: TensorType) -> float:
    """A finite number: minus infinity throughout a row would make its softmax undefined."""
    return {"float16": -65504.0, "float64": -1.7976931348623157e308}.get(type_.dtype, -3.3895313892515355e38)


_WRITERS: dict[str, Callable[[_Writer], bool]] = {
    "aten.dropout.default": _dropout,
    "aten.feature_dropout.default": _feature_dropout,
    "aten.alpha_dropout.default": _alpha_dropout,
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand,
    "aten.randn.default": _randn,
    "aten.randn_like.default": _randn,
    "aten.normal_functional.default": _normal_like,
    "aten.uniform.default": _uniform_like,
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
    ATTENTION: _attention,
}
