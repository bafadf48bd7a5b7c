"""Gradients that leave, or are added up, while the rest of their segment's backward still runs.

A bucket sets out when its last gradient is there, in the order of the buckets: that order is the plan's, so it is the
same on every rank.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from meshwright.generate.pair import SegmentPair
from meshwright.plan import Instruction
from meshwright.plan.instruction import BACKWARDS
from meshwright.price.buckets import Bucket
from meshwright.runtime.step.link import Gradients, Link
from meshwright.runtime.weights.store import Store

Backward = Callable[[list[Tensor], Sequence[Tensor], Sequence[Tensor]], Gradients]


class Leaving:
    """last: (segment, micro-batch) of the backwards after which a segment's gradients are reduced."""

    def __init__(self) -> None:
        self.last: frozenset[tuple[int, int]] = frozenset()
        self._telling: dict[int, Callable[..., tuple[Any, ...]]] = {}

    def backward(self, link: Link, microbatch: int) -> Backward | None:
        """A segment's backward of which gradients leave, or are added to those of other micro-batches, as they are
        made; it returns those of the inputs. None where there is nothing to gain, or where it does not come apart:
        compiled, in chunks, in runs. What shares memory is seen when it first runs; then they are handed over together.
        """
        pair, part = link.pair, link.part
        if part.compiled or link.clones is None or link.end - link.first > 1 or not isinstance(pair, SegmentPair):
            return None
        buckets = part.store.leaving(link.first, last=(link.first, microbatch) in self.last)
        if not buckets and part.store.plan.microbatches == 1:
            return None
        if id(pair) not in self._telling:
            self._telling[id(pair)] = pair.telling()
        told = _Told(part.store, buckets, link.weight_names, link.clones)
        return partial(_run, pair, partial(self._telling[id(pair)], told=told))


def last_backwards(instructions: Sequence[Instruction]) -> frozenset[tuple[int, int]]:
    """(segment, micro-batch) of whole backwards after which nothing is added to the segment's gradients before they are
    reduced."""
    found, following = set(), dict[int, str]()
    for one in reversed(instructions):
        if one.segment is None or one.kind not in (*BACKWARDS, "reduce"):
            continue
        if one.kind == "backward" and following.get(one.segment) == "reduce":
            assert one.microbatch is not None
            found.add((one.segment, one.microbatch))
        following[one.segment] = one.kind
    return frozenset(found)


def _run(
    pair: SegmentPair,
    second: Callable[[list[Tensor]], tuple[Any, ...]],
    saved: list[Tensor],
    params: Sequence[Tensor],
    gradients: Sequence[Tensor],
) -> Gradients:
    return pair.run_backward(saved, params, gradients, second)[0]


class _Told:
    """Of one backward. names: whose gradients come, by place; clones: places of those whose memory something else has
    too."""

    def __init__(self, store: Store, buckets: Sequence[Bucket], names: Sequence[str], clones: frozenset[int]) -> None:
        self._store, self._names, self._clones = store, names, clones
        self._buckets = deque(buckets)
        self._missing = Counter(names)

    def result(self, place: int, tensor: Tensor) -> None:
        name = self._names[place]
        self._store.add_gradient(name, tensor.clone() if place in self._clones else tensor)
        self._there(name)

    def product(self, place: int, one: Tensor, other: Tensor) -> None:
        name = self._names[place]
        self._store.add_product(name, one, other)
        self._there(name)

    def _there(self, name: str) -> None:
        self._missing[name] -= 1
        while self._buckets and not any(self._missing[one] for one in self._buckets[0].names):
            self._store.reduce_bucket(self._buckets.popleft())
