"""Sizes that may depend on the batch: whole-number polynomials in one named size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSize:
    """`sum(c * batch**i for i, c in enumerate(coefficients))`; prints as `6*b` or `b+1`."""

    coefficients: tuple[int, ...]

    def at(self, batch: int) -> int:
        return sum(c * batch**power for power, c in enumerate(self.coefficients))

    def __str__(self) -> str:
        terms = []
        for power, c in reversed(list(enumerate(self.coefficients))):
            if c:
                symbol = "" if power == 0 else "b" if power == 1 else f"b**{power}"
                terms.append(str(c) if not symbol else symbol if c == 1 else f"{c}*{symbol}")
        return "+".join(terms) or "0"


class BatchFloat(BatchSize):
    """The same as a float: a number of samples or tokens that something is divided by."""

    __slots__ = ()

    def at(self, batch: int) -> int:
        return float(BatchSize.at(self, batch))  # type: ignore[return-value]  # a number among arguments, never a size


Size = int | BatchSize

KEEP_SIZES = "write `x.shape[0]` for `len(x)`, and take no `int(...)` or `float(...)` of sizes, in model and loss"
"""What to do where a batch cannot vary."""


def size_at(size: Size, batch: int) -> int:
    return size.at(batch) if isinstance(size, BatchSize) else size


def fit_size(value_at: Callable[[int], int | None]) -> BatchSize | None:
    """The polynomial of at most the second degree through `value_at`, or None where it is none.

    Finite differences at 2, 3, 4 give the coefficients; two further points must agree.
    """
    f2, f3, f4 = value_at(2), value_at(3), value_at(4)
    if f2 is None or f3 is None or f4 is None:
        return None
    second = f4 - 2 * f3 + f2
    if second % 2:
        return None
    quadratic = second // 2
    linear = f3 - f2 - 5 * quadratic
    found = BatchSize((f2 - 2 * linear - 4 * quadratic, linear, quadratic))
    if quadratic == 0:
        found = BatchSize(found.coefficients[:2])
    return found if all(found.at(n) == value_at(n) for n in (7, 12)) else None
