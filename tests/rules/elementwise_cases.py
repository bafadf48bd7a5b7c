"""Cases of elementwise rules."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rule_operands import bools, f, ints, plain

from meshwright.rules.prove import Case, case
from meshwright.rules.table import UNPROVEN
from meshwright.rules.table.elementwise import RULES

X = (12, 6)
BINARY = """
    atan2 copysign eq float_power fmax fmin fmod ge greater greater_equal gt hypot isclose le less less_equal logaddexp
    lt max.other maximum min.other minimum ne not_equal pow remainder xlogy
"""
SHIFTS = "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__"
BOTH_BOOLEAN = "bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor __and__ __or__ __xor__"
OVERLOADS = {"eq": "Tensor", "ge": "Tensor", "gt": "Tensor", "le": "Tensor", "lt": "Tensor", "ne": "Tensor"}
OVERLOADS |= {"fmod": "Tensor", "pow": "Tensor_Tensor", "remainder": "Tensor", "float_power": "Tensor_Tensor"}
OVERLOADS |= {"copysign": "Tensor", "xlogy": "Tensor", "__and__": "Tensor", "__or__": "Tensor", "__xor__": "Tensor"}
OVERLOADS |= dict.fromkeys(("greater", "greater_equal", "less", "less_equal", "not_equal"), "Tensor")
OVERLOADS |= {"bitwise_and": "Tensor", "bitwise_or": "Tensor", "bitwise_xor": "Tensor"}


def elementwise() -> Iterator[Case]:
    for name in BINARY.split():
        target = f"aten.{name}" if "." in name else f"aten.{name}.{OVERLOADS.get(name, 'default')}"
        yield case(target, f(*X), f(12, 1))
    for name in BOTH_BOOLEAN.split():
        yield case(f"aten.{name}.{OVERLOADS.get(name, 'default')}", bools(12, 6), bools(6))
    yield from (case(f"aten.{name}.Tensor", ints(5, *X), ints(3, 6)) for name in SHIFTS.split())
    arithmetic = ("add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide")
    yield from (case(f"aten.{name}.Tensor", f(*X), f(6)) for name in arithmetic)
    yield from (case(f"aten.{name}.Tensor", f(*X), 3.0) for name in arithmetic)
    yield case("aten.add.Tensor", f(*X), f(12, 1), alpha=2)
    yield case("aten.div.Tensor_mode", plain(*X), 0.3, rounding_mode="floor")
    yield case("aten.mul.Tensor", f(12, 1), f(1, 6))
    yield case("aten.rsub.Scalar", f(*X), 1.0)
    yield case("aten.pow.Scalar", 3.0, f(*X))
    yield case("aten.pow.Tensor_Scalar", f(*X), 3)
    yield case("aten.complex.default", f(*X), f(6))
    yield case("aten.polar.default", f(*X), f(*X))
    yield case("aten.mul.Tensor", torch.complex(plain(*X), plain(*X)).requires_grad_(), f(6))
    yield case("aten.copy.default", plain(*X), plain(12, 1))
    yield case("aten.fill.Tensor", f(*X), f())
    yield case("aten.broadcast_tensors.default", (f(*X), f(12, 1)))
    yield case("aten.where.self", bools(6), f(*X), f(12, 1))
    yield case("aten.where.ScalarOther", bools(*X), f(*X), 0.0)
    yield case("aten.masked_fill.Scalar", f(*X), bools(6), 0.0)
    yield case("aten.clamp.default", f(*X), 0.4, None)
    yield case("aten.clamp_min.default", f(*X), 0.4)
    yield case("aten.clamp_max.default", f(*X), 0.4)
    yield case("aten.lerp.Tensor", f(*X), f(6), f(12, 1))
    yield case("aten.addcmul.default", f(*X), f(6), f(12, 1))
    yield case("aten.addcdiv.default", f(*X), f(6), f(12, 1))
    yield case("aten.prelu.default", f(6, 12, 2), f(12))
    yield case("aten.prelu.default", f(6, 12, 2), f(1))
    yield case("aten.type_as.default", f(*X), torch.rand(5))
    yield case("aten.to.other", f(*X), torch.rand(5))
    yield case("aten.bucketize.Tensor", f(*X), torch.tensor([0.3, 0.5], dtype=torch.float64))
    yield case("aten.to.dtype", f(*X), torch.float32)
    yield case("aten.dropout.default", f(*X), 0.0, True)
    yield case("aten.dropout.default", f(*X), 0.5, False)
    yield case("aten.acosh.default", f(*X).detach().add(1).requires_grad_())
    yield case("aten.threshold.default", f(*X), 0.5, 0.1)
    # No gradient is defined for these two.
    yield case("aten.floor_divide.default", plain(*X), plain(12, 1))
    yield case("aten.nextafter.default", plain(*X), plain(12, 1))
    yield case("aten.bitwise_not.default", bools(*X))
    yield case("aten.full_like.default", f(*X), 2.0)
    yield case("aten.abs.default", f())


def unary(covered: set[str]) -> Iterator[Case]:
    """Every elementwise rule that needs no case of its own: one tensor in, one out."""
    for key in RULES:
        if key not in covered and key not in UNPROVEN:
            yield case(f"{key}.default", f(*X))
