"""A rule by experiment: an op that nobody knows is run on small tensors, whole and in two halves.

A *cut* halves some of the operands, each along one dim, and leaves the others whole. It is a way to shard the op if
running it on the halves gives, for every result, either halves of the whole result along some dim or two parts that
sum to it, and if every operand's gradient comes out in halves (where it was halved) or as two parts of a sum (where
it was not). Each cut that passes, on every draw of random numbers and then in the proof, is one factor of the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.capture.program import Op
from meshwright.errors import RuleError
from meshwright.layout.states import P, S, State
from meshwright.rules.findings import Finding, Sample, cuts, takes
from meshwright.rules.prove import Case, gradients_of, run_by_position


def experiments(small: Sample, alike: bool = False) -> Iterator[Finding]:
    """The ways to shard the op that running it shows; none where nothing but running it whole works. alike: dims of one
    size are only cut together."""
    op = small.case.op
    try:
        trials = [_Trial.of(given) for given in small.cases]
    except Exception:
        # The op is not ours. On numbers that we made up, forward or backward, it may raise anything at all; whatever it
        # is, there is no experiment to be had.
        return
    again = [result.detach() for result in run_by_position(op, trials[0].operands)]
    if not all(map(_equal, trials[0].results, again)):
        raise RuleError(
            f"{op.target} gives another result each time it runs",
            "an op that draws no random numbers and remembers nothing",
            "draw with dropout, rand, randn or bernoulli, outside of it",
        )
    for cut in cuts(small.call.types, alike):
        results = [trial.results_of(op, cut) for trial in trials]
        if results[0] is not None and results.count(results[0]) == len(trials):
            yield Finding(cut, results[0])


@dataclass(frozen=True, slots=True)
class _Trial:
    """One draw: operands, what the whole op makes of them, gradients given and got."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    upstream: tuple[Tensor | None, ...]
    gradients: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, given: Case) -> _Trial:
        operands = given.operands
        results = run_by_position(given.op, operands)
        generator = torch.Generator().manual_seed(0)
        upstream = tuple(
            torch.rand(r.shape, generator=generator, dtype=r.dtype) if r.requires_grad else None for r in results
        )
        gradients = gradients_of(results, upstream, operands)
        return cls(operands, tuple(r.detach() for r in results), upstream, gradients)

    def results_of(self, op: Op, cut: Sequence[State]) -> tuple[State, ...] | None:
        """Where the results are under this cut; None if it does not give the whole's results and gradients."""
        halves = [_halved(operand, state) for operand, state in zip(self.operands, cut, strict=True)]
        if not takes(op, [pair[0] for pair in halves]):
            return None
        try:
            made = [run_by_position(op, [pair[side] for pair in halves]) for side in (0, 1)]
        except Exception:
            # Most cuts are nonsense (half a matrix times a whole one), and an op that we do not know says so in its
            # own way: any exception means that this is no way to run it.
            return None
        states: list[State] = []
        for index, whole in enumerate(self.results):
            state = _placed(whole, made[0][index].detach(), made[1][index].detach())
            if state is None:
                return None
            states.append(state)
        return tuple(states) if self._gradients_agree(made, halves, cut, states) else None

    def _gradients_agree(
        self,
        made: Sequence[Sequence[Tensor]],
        halves: Sequence[Sequence[Tensor]],
        cut: Sequence[State],
        states: Sequence[State],
    ) -> bool:
        found = []
        for side in (0, 1):
            upstream = [
                None if g is None else g.chunk(2, s.dim)[side] if s.dim is not None else g
                for g, s in zip(self.upstream, states, strict=True)
            ]
            found.append(gradients_of(made[side], upstream, [pair[side] for pair in halves]))
        for whole, first, second, state in zip(self.gradients, found[0], found[1], cut, strict=True):
            if whole is None:
                continue
            if first is None or second is None:
                return False
            joined = torch.cat([first, second], state.dim) if state.dim is not None else first + second
            if not _equal(joined, whole):
                return False
        return True


def _halved(operand: Tensor, state: State) -> tuple[Tensor, ...]:
    pieces = operand.detach().chunk(2, state.dim) if state.dim is not None else (operand.detach(),) * 2
    return tuple(piece.clone().requires_grad_(operand.requires_grad) for piece in pieces)


def _placed(whole: Tensor, first: Tensor, second: Tensor) -> State | None:
    """The dim along which two halves make the whole, or `P` if they sum to it."""
    for dim in range(whole.dim()):
        if first.shape == second.shape and 2 * first.shape[dim] == whole.shape[dim]:
            joined = torch.cat([first, second], dim)
            if joined.shape == whole.shape and _equal(joined, whole):
                return S(dim)
    if first.shape == second.shape == whole.shape and whole.is_floating_point() and _equal(first + second, whole):
        return P
    return None


def _equal(found: Tensor, truth: Tensor) -> bool:
    if found.shape != truth.shape:
        return False
    if not (truth.is_floating_point() or truth.is_complex()):
        return torch.equal(found, truth)
    rtol, atol = (1e-7, 1e-9) if truth.dtype in (torch.float64, torch.complex128) else (1e-4, 1e-5)
    return torch.allclose(found, truth, rtol=rtol, atol=atol, equal_nan=True)
