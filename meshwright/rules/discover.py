"""A rule by experiment: an op that nobody knows is run on small tensors, whole and in two halves.

A *cut* halves some of the operands, each along one dim, and leaves the others whole. It is a way to shard the op if
running it on the halves gives, for every result, either halves of the whole result along some dim or two parts that
sum to it, and if every operand's gradient comes out in halves (where it was halved) or as two parts of a sum (where
it was not). Each cut that passes, on two draws of random numbers, is one factor of the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

import torch
from torch import Tensor

from meshwright.capture.program import Op, Ref, TensorType, TorchConstant
from meshwright.capture.targets import call
from meshwright.errors import RuleError
from meshwright.layout.states import P, R, S, State
from meshwright.rules.rule import Call
from meshwright.rules.shapes import opaque
from meshwright.rules.signature import Signature, Term

LARGEST = 1 << 16
"""Elements of the largest tensor of an experiment."""
MOST_CUTS = 512
TRIALS = 2
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Finding:
    """Where each operand and each result is, on an axis given to one discovered factor."""

    operands: tuple[State, ...]
    results: tuple[State, ...]

    def states(self) -> tuple[State, ...]:
        return self.operands + self.results


_known: dict[object, tuple[Finding, ...]] = {}


def discovered(call: Call) -> Signature | None:
    """The op's signature as found by running it; None where nothing but running it whole works."""
    literals = call.op.map(lambda leaf: None if isinstance(leaf, Ref) else leaf)
    key = (call.op.target, literals.args, literals.kwargs, call.types)
    if key not in _known:
        _known[key] = tuple(_findings(call))
    found = _known[key]
    if not found:
        return None
    terms, fixed = opaque((*call.types, *call.result_types))
    names = [f"f{i}" for i in range(len(found))]
    marked = []
    for position, term in enumerate(terms):
        marks = ((name, finding.states()[position]) for name, finding in zip(names, found, strict=True))
        marked.append(Term(term.dims, tuple(marks)))
    sizes = tuple((name, _common_size(call, finding)) for name, finding in zip(names, found, strict=True))
    return Signature(tuple(marked[: len(call.types)]), tuple(marked[len(call.types) :]), fixed, given=sizes)


def _common_size(call: Call, finding: Finding) -> int:
    """What a number of ranks must divide, so that every dim that is cut is cut evenly."""
    types = (*call.types, *call.result_types)
    return gcd(*(type_.sizes[s.dim] for type_, s in zip(types, finding.states(), strict=True) if s.dim is not None))


def _findings(call: Call) -> Iterator[Finding]:
    types = _small_types(call)
    if types is None or not call.types:
        return
    try:
        trials = [_Trial.of(call.op, types, seed) for seed in range(TRIALS)]
    except Exception:
        return
    if not all(map(_equal, trials[0].results, _again(call.op, trials[0]))):
        raise RuleError(
            f"{call.op.target} gives another result each time it runs",
            "an op that draws no random numbers and remembers nothing",
            "draw with dropout, rand, randn or bernoulli, outside of it",
        )
    per_operand = [[R, *(S(d) for d, size in enumerate(t.sizes) if size % 2 == 0 and size)] for t in types]
    if prod(map(len, per_operand)) > MOST_CUTS:
        return
    for cut in product(*per_operand):
        if any(state.is_shard for state in cut):
            results = [trial.results_of(call.op, cut) for trial in trials]
            if results[0] is not None and results.count(results[0]) == TRIALS:
                yield Finding(cut, results[0])


def _small_types(call: Call) -> tuple[TensorType, ...] | None:
    """The operands' types, with every size that no argument names that is even brought down to 8, 10, ...."""
    types = call.types
    if all(prod(t.sizes) <= LARGEST for t in (*types, *call.result_types)):
        return types
    named = {leaf for leaf in _leaves((call.op.args, call.op.kwargs)) if isinstance(leaf, int)}
    sizes = sorted({size for t in types for size in t.sizes if size > 8})
    small = {size: 8 + 2 * index for index, size in enumerate(sizes) if size not in named and size % 2 == 0}
    shrunk = tuple(TensorType(tuple(small.get(n, n) for n in t.sizes), t.dtype) for t in types)
    return shrunk if all(prod(t.sizes) <= LARGEST for t in shrunk) else None


def _leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, tuple):
        for item in tree:
            yield from _leaves(item)
    else:
        yield tree


@dataclass(frozen=True, slots=True)
class _Trial:
    """One draw: operands, what the whole op makes of them, gradients given and got."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    upstream: tuple[Tensor | None, ...]
    gradients: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, op: Op, types: Sequence[TensorType], seed: int) -> _Trial:
        generator = torch.Generator().manual_seed(seed)
        operands = tuple(_random(type_, generator) for type_ in types)
        results = _run(op, operands)
        upstream = tuple(
            torch.rand(r.shape, generator=generator, dtype=r.dtype) if r.requires_grad else None for r in results
        )
        gradients = _gradients(results, upstream, operands)
        return cls(operands, tuple(r.detach() for r in results), upstream, gradients)

    def results_of(self, op: Op, cut: Sequence[State]) -> tuple[State, ...] | None:
        """Where the results are under this cut; None if it does not give the whole's results and gradients."""
        halves = [_halved(operand, state) for operand, state in zip(self.operands, cut, strict=True)]
        try:
            made = [_run(op, [pair[side] for pair in halves]) for side in (0, 1)]
        except Exception:
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
            found.append(_gradients(made[side], upstream, [pair[side] for pair in halves]))
        for whole, first, second, state in zip(self.gradients, found[0], found[1], cut, strict=True):
            if whole is None:
                continue
            if first is None or second is None:
                return False
            joined = torch.cat([first, second], state.dim) if state.dim is not None else first + second
            if not _equal(joined, whole):
                return False
        return True


def _random(type_: TensorType, generator: torch.Generator) -> Tensor:
    if type_.is_float:
        return torch.rand(type_.sizes, generator=generator, dtype=torch.float64).add(0.1).requires_grad_()
    high = 2 if type_.dtype == "bool" else min([4, *(size for size in type_.sizes if size)])
    return torch.randint(0, high, type_.sizes, generator=generator).to(getattr(torch, type_.dtype))


def _run(op: Op, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    position = iter(range(len(operands)))
    placed = op.map(lambda leaf: Ref(f"operand{next(position)}") if isinstance(leaf, Ref) else _double(leaf))
    named: Mapping[str, Tensor] = {f"operand{i}": t for i, t in enumerate(operands)}
    return call(placed, named, _CPU)


def _double(leaf: object) -> object:
    return TorchConstant("float64") if leaf == TorchConstant("float32") else leaf


def _again(op: Op, trial: _Trial) -> tuple[Tensor, ...]:
    return tuple(result.detach() for result in _run(op, trial.operands))


def _halved(operand: Tensor, state: State) -> tuple[Tensor, ...]:
    pieces = operand.detach().chunk(2, state.dim) if state.dim is not None else (operand.detach(),) * 2
    return tuple(piece.clone().requires_grad_(operand.requires_grad) for piece in pieces)


def _gradients(
    results: Sequence[Tensor], upstream: Sequence[Tensor | None], operands: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    pairs = [(r, g) for r, g in zip(results, upstream, strict=True) if g is not None and r.requires_grad]
    wanted = [t for t in operands if t.requires_grad]
    if not pairs or not wanted:
        return (None,) * len(operands)
    outputs, given = zip(*pairs, strict=True)
    found = dict(zip(map(id, wanted), torch.autograd.grad(outputs, wanted, given, allow_unused=True), strict=True))
    return tuple(found.get(id(t)) for t in operands)


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
    return torch.allclose(found, truth, rtol=1e-7, atol=1e-9, equal_nan=True)
