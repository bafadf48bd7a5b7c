"""What an op takes of the host in the midst of others: chains of ops, as models have them, timed op by op.

In a loop of its own an op's code is at hand; in a model it comes again with the next layer, after others. So kinds are
shuffled into layers of a few each, and a tape has several layers alike. Forward is timed between any two ops, backward
by hooks on the values between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from meshwright.cluster.calibrate.moves import Move, last_of, moves
from meshwright.cluster.calibrate.pace import Pace

SHUFFLES, PARTS, LAYERS, ROUNDS = 2, 8, 6, 8
"""How often kinds are dealt into layers, about how many to each, how many layers a tape has, how often it is run."""
Figures = dict[str, list[float]]


class Tape:
    """A chain of ops on tensors so small that the host bounds it."""

    def __init__(self, moves: Sequence[Move], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.moves = device, moves
        self.x = torch.randn(4, 64, 128, device=device).to(dtype).requires_grad_()

    def forward(self) -> list[float]:
        """Seconds of each op."""
        self._synchronize()
        state: object = self.x
        stamps = [perf_counter()]
        for move in self.moves:
            state = move.run(state)
            stamps.append(perf_counter())
        last_of(state).mean().backward()  # type: ignore[no-untyped-call]
        return [after - before for before, after in pairwise(stamps)]

    def backward(self) -> dict[int, float]:
        """Seconds of each op that has one. Two hooks at each value: what they take themselves is between them."""
        begun: dict[int, float] = {}
        ended: dict[int, float] = {}

        def look(value: Tensor, number: int) -> list[Any]:
            hooks = (lambda _: ended.__setitem__(number, perf_counter()),
                     lambda _: begun.__setitem__(number - 1, perf_counter()))  # fmt: skip
            return [value.register_hook(hook) for hook in hooks]  # type: ignore[no-untyped-call]

        state: object = self.x
        handles, count = look(self.x, 0), 0
        for move in self.moves:
            state = move.run(state)
            if move.grad:
                count += 1
                look(last_of(state), count)
        loss = last_of(state).mean()
        self._synchronize()
        loss.backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
        return {number: ended[number] - begun[number] for number in range(count)}

    def _synchronize(self) -> None:
        self.x.grad = None
        for move in self.moves:
            for leaf in move.leaves:
                leaf.grad = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def tapes(device: torch.device, dtype: torch.dtype, shuffles: int = SHUFFLES) -> Iterator[tuple[Tape, int]]:
    """Every kind is on one of the tapes of each shuffle. And how many moves make the first layer: it warms the rest."""
    layers = [list(moves(device, dtype)) for _ in range(LAYERS)]
    for seed in range(shuffles):
        order = list(range(len(layers[0])))
        Random(seed).shuffle(order)
        count = max(1, round(len(order) / PARTS))
        for part in (order[i::count] for i in range(count)):
            each = [[move for number in part for move in layer[number]] for layer in layers]
            yield Tape([move for layer in each for move in layer], device, dtype), len(each[0])


def tape_figures(
    device: torch.device, dtype: torch.dtype, pace: Pace, shuffles: int = SHUFFLES, rounds: int = ROUNDS
) -> Figures:
    """Forward and backward of every kind, in units of a step at the host's pace."""
    found: dict[str, list[list[float]]] = {}
    for tape, first in tapes(device, dtype, shuffles):
        rows = _measured(tape, pace, rounds)
        graded = [number for number, move in enumerate(tape.moves) if move.grad]
        for side, numbers in enumerate((range(len(tape.moves)), graded)):
            for number, column in zip(numbers, zip(*(row[side] for row in rows), strict=True), strict=True):
                if number >= first:
                    found.setdefault(tape.moves[number].name, [[], []])[side].append(median(column))
    return _parted({name: [_middle(side) for side in sides] for name, sides in found.items()})


def _measured(tape: Tape, pace: Pace, rounds: int) -> list[tuple[list[float], list[float]]]:
    """Forward of every op and backward of those that have one, several times."""
    for _ in range(2):
        tape.forward()
        tape.backward()

    def both() -> list[float]:
        forward, backward = tape.forward(), tape.backward()
        return [*forward, *(backward[number] for number in sorted(backward))]

    count = len(tape.moves)
    return [(row[:count], row[count:]) for row in pace.rounds(both, rounds)]


def _middle(values: list[float]) -> float:
    """The mean of the middle half; of none, nothing."""
    ordered = sorted(values) or [0.0]
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


def _parted(table: Mapping[str, list[float]]) -> Figures:
    """`summed`: a sum of two gradients, seen as a view whose gradient is added to another."""
    found = dict(table)
    twice = found.pop("view_and_sum")
    found["summed"] = [0.0, max(twice[1] - found["view"][1], found["add"][0] / 4)]
    return found
