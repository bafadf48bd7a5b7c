"""Ways to shard an op that were found rather than written: as small examples, as a proof, and as a Rule.

A *finding* says where every operand and result is on one mesh axis. Tried ones come from running the op
(`discover`), others are read from DTensor (`adopt`); either way the op is known only at one set of shapes and literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import gcd, prod

import torch
from torch import Tensor

from meshwright.capture.program import Op, Ref, TensorType, TorchConstant
from meshwright.cluster import logical_mesh
from meshwright.errors import MeshwrightError
from meshwright.layout.states import P, R, S, State
from meshwright.rules.prove import TOLERANCE, Case, case_of, prove_strategy, run_by_position
from meshwright.rules.rule import Call, Rule, Tier
from meshwright.rules.shapes import opaque
from meshwright.rules.signature import Signature, Term
from meshwright.rules.strategy import strategies_of
from meshwright.torch_compat import UNTOLD_SHAPES, fake_mode, fake_tensor

LARGEST = 1 << 16
"""Elements of the largest tensor of an example."""
MOST_CUTS = 512
MOST_FINDINGS = 12
Draw = Callable[[Tensor], Tensor]
DRAWS: tuple[Draw, ...] = (
    lambda uniform: uniform + 0.1,
    lambda uniform: uniform * 4 - 2,
    lambda uniform: uniform * 40 - 20,
    lambda uniform: (uniform > 0.5) * 2.0 - 1.0,
)
"""Numbers that nearly every function is defined for; of both signs; large ones; and only 1 and -1."""
LONGEST_AXIS = 16
"""Ranks of the longest axis on which a finding is proven."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Where each operand and each result is, on an axis given to one found factor."""

    operands: tuple[State, ...]
    results: tuple[State, ...]

    @property
    def name(self) -> str:
        """The factor's name says what it is, so that a plan means the same wherever it is read: `f0r_0` has the first
        operand sharded along dim 0, the second whole, and the result along dim 0."""
        codes = [
            [s.kind.lower() if s.dim is None else str(s.dim) for s in side] for side in (self.operands, self.results)
        ]
        return f"f{'_'.join(map(''.join, codes))}"

    @property
    def carries(self) -> bool:
        """Whether an operand is part of a sum."""
        return P in self.operands

    def states(self) -> tuple[State, ...]:
        return self.operands + self.results


def key_of(call: Call) -> object:
    """What a finding holds for: the op, its literals, the types it reads."""
    literals = call.op.map(lambda leaf: None if isinstance(leaf, Ref) else leaf)
    return call.op.target, literals.args, literals.kwargs, call.types


@dataclass(frozen=True, slots=True)
class Sample:
    """The call on small random tensors, drawn in several ways, and how closely results must agree in their precision.

    Numbers of one kind hide what an op does with others: all positive, `relu` is linear.
    """

    call: Call
    cases: tuple[Case, ...]
    tolerance: float

    @property
    def case(self) -> Case:
        return self.cases[0]


def sample(call: Call) -> Sample | None:
    """The call on tensors that are small where its arguments let them be; None where it runs on none of our making, or
    makes nothing but zeros of them."""
    if not call.types:
        return None
    for dtype, tolerance in (("float64", TOLERANCE), ("float32", 1e-5)):
        for types in dict.fromkeys((_small(call), call.types)):
            if any(prod(t.sizes) > LARGEST for t in types):
                continue
            same = tuple(replace(t, dtype=dtype) if t.is_float else t for t in types)
            single, wanted = TorchConstant("float32"), TorchConstant(dtype)
            op = replace(call.op.map(lambda leaf, one=single, to=wanted: to if leaf == one else leaf), results=())
            cases = tuple(_examples(Call(op, same)))
            if cases and _tells(cases):
                return Sample(Call(cases[0].op, same), cases, tolerance)
    return None


def _examples(call: Call) -> Iterator[Case]:
    for draw in DRAWS:
        generator = torch.Generator().manual_seed(0)
        operands = [_random(type_, draw, generator) for type_ in call.types]
        if not takes(call.op, operands):
            continue
        try:
            found = case_of(call.op, operands)
        except Exception:
            # The op is not ours. On numbers and sizes that we made up it may raise anything at all (a domain error, a
            # shape that it refuses, no kernel for double precision): then there is nothing to be learnt from these.
            continue
        yield found


def takes(op: Op, operands: Sequence[Tensor]) -> bool:
    """Whether the op takes tensors of these shapes, by what it says of fake ones: real ones would be the first that a
    kernel which does not check them is run on."""
    mode = fake_mode()
    try:
        fakes = [fake_tensor(tuple(one.shape), one.dtype, mode) for one in operands]
        with mode, torch.no_grad():
            run_by_position(op, fakes)
    except UNTOLD_SHAPES:
        return True
    except Exception:  # the op is not ours: it says in its own way that it does not
        return False
    return True


def _tells(cases: Sequence[Case]) -> bool:
    """Whether every result is something else than zeros in some example: sums and pieces of zeros are all alike."""
    made = [run_by_position(case.op, case.operands) for case in cases]
    return all(any(bool(result.detach().ne(0).any()) for result in results) for results in zip(*made, strict=True))


def _small(call: Call) -> tuple[TensorType, ...]:
    """Its types, every even size that no argument names brought down to 8, 12, ....; equal ones stay equal."""
    named = {leaf for leaf in _leaves((call.op.args, call.op.kwargs)) if isinstance(leaf, int)}
    sizes = sorted({size for t in call.types for size in t.sizes if size > 8 and size % 2 == 0} - named)
    small = {size: min(size, 8 + 4 * index) for index, size in enumerate(sizes)}
    return tuple(TensorType(tuple(small.get(n, n) for n in t.sizes), t.dtype) for t in call.types)


def cuts(types: Sequence[TensorType], alike: bool = False) -> list[tuple[State, ...]]:
    """Ways to halve operands: every combination where these are few; else, or `alike`, those that cut all dims of one
    size or, of an operand, one of them."""
    halved = [[dim for dim, size in enumerate(t.sizes) if size and size % 2 == 0] for t in types]
    whole = [[R, *(S(dim) for dim in dims)] for dims in halved]
    if prod(map(len, whole)) <= MOST_CUTS and not alike:
        return [cut for cut in product(*whole) if any(state.is_shard for state in cut)]
    found: dict[tuple[State, ...], None] = {}
    for size in sorted({t.sizes[dim] for t, dims in zip(types, halved, strict=True) for dim in dims}):
        ways = [[R, *(S(d) for d in dims if t.sizes[d] == size)] for t, dims in zip(types, halved, strict=True)]
        if alike:
            ways = [one[1:] or one for one in ways]
        if prod(map(len, ways)) <= MOST_CUTS:
            found |= dict.fromkeys(cut for cut in product(*ways) if any(state.is_shard for state in cut))
    return list(found)[:MOST_CUTS]


def partials(types: Sequence[TensorType]) -> list[tuple[State, ...]]:
    """Ways to have some operands as parts of a sum: what a linear op passes through, or adds to a sum it makes."""
    per_operand = [[R, P] if type_.is_float else [R] for type_ in types]
    if prod(map(len, per_operand)) > MOST_CUTS:
        return []
    contracted = [cut for cut in cuts(types) if sum(state.is_shard for state in cut) > 1]
    contracted_partials = (
        tuple(P if state == R and t.is_float else state for t, state in zip(types, cut, strict=True))
        for cut in contracted
    )
    return [cut for cut in (*product(*per_operand), *contracted_partials) if P in cut]


@dataclass(frozen=True, slots=True)
class Proven:
    """Findings that the proof confirms, each with the smallest piece of a dim it was tried on; the factors that hold
    alone but not together; and what the proof says against the others."""

    findings: tuple[Finding, ...]
    pieces: tuple[int, ...]
    apart: frozenset[str]
    dropped: tuple[str, ...]

    def rule(self, call: Call, tier: Tier) -> Rule | None:
        """One factor per finding; None without any. The op itself is what a rank runs."""
        if not self.findings:
            return None
        signature = _signature(call, self.findings, self.pieces)
        return Rule(lambda call: signature, tier=tier, shown=str(signature), apart=self.apart, uneven=False)


def prove_findings(small: Sample, found: Sequence[Finding]) -> Proven:
    """On an axis of two, on the longest that the sample's sizes allow, and in pairs on two axes."""
    kept: list[Finding] = []
    pieces: list[int] = []
    dropped: list[str] = []
    for finding in found[:MOST_FINDINGS]:
        wrongs = (_fault(small, [finding], (2,), given) for given in small.cases)
        wrong = next(filter(None, wrongs), None) or _fault(small, [finding, finding], (2, 2))
        if wrong:
            dropped.append(wrong)
            continue
        kept.append(finding)
        size = _common_size(small.call, finding)
        ways = next(n for n in (*range(min(size, LONGEST_AXIS), 2, -1), 2) if n == 2 or _holds(small, finding, size, n))
        pieces.append(max(1, size // ways))
    clashing = [pair for pair in combinations(kept, 2) if _fault(small, pair, (2, 2)) is not None]
    apart = frozenset(finding.name for pair in clashing for finding in pair)
    return Proven(tuple(kept), tuple(pieces), apart, tuple(dropped))


def _holds(small: Sample, finding: Finding, size: int, ways: int) -> bool:
    return size % ways == 0 and _fault(small, [finding], (ways,)) is None


def _fault(small: Sample, found: Sequence[Finding], sizes: tuple[int, ...], given: Case | None = None) -> str | None:
    """What the proof says against one finding per axis; nothing where it holds or these sizes do not allow it."""
    given, mesh = given or small.case, logical_mesh(dict(zip("xy", sizes, strict=False)))
    distinct = tuple(dict.fromkeys(found))
    rule = Proven(distinct, (1,) * len(distinct), frozenset(), ()).rule(small.call, "discovered")
    factors = tuple(finding.name for finding in found)
    assert rule is not None
    try:
        for one in strategies_of(rule, given.op, given.values(), mesh):
            if one.factors == factors:
                prove_strategy(given, one, mesh, tolerance=small.tolerance)
    except MeshwrightError as error:
        return str(error)
    except Exception as error:  # the op is not ours: on pieces it may raise anything, and then it is no way to run it
        return f"{given.op.target}: {error}"
    return None


def _signature(call: Call, found: Sequence[Finding], pieces: Sequence[int]) -> Signature:
    terms, fixed = opaque((*call.types, *call.result_types))
    names = [finding.name for finding in found]
    marked = []
    for position, term in enumerate(terms):
        marks = ((name, finding.states()[position]) for name, finding in zip(names, found, strict=True))
        marked.append(Term(term.dims, tuple(marks)))
    sizes = zip(names, (_common_size(call, finding) for finding in found), pieces, strict=True)
    given = tuple((name, size // piece) for name, size, piece in sizes)
    return Signature(tuple(marked[: len(call.types)]), tuple(marked[len(call.types) :]), fixed, given=given)


def _common_size(call: Call, finding: Finding) -> int:
    """What a number of ranks must divide, so that every dim that is cut is cut evenly; zero where none is cut."""
    types = (*call.types, *call.result_types)
    return gcd(*(type_.sizes[s.dim] for type_, s in zip(types, finding.states(), strict=True) if s.dim is not None))


def _leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, tuple):
        for item in tree:
            yield from _leaves(item)
    else:
        yield tree


def _random(type_: TensorType, draw: Draw, generator: torch.Generator) -> Tensor:
    if type_.is_float:
        drawn = draw(torch.rand(type_.sizes, generator=generator, dtype=torch.float64))
        return drawn.to(getattr(torch, type_.dtype)).requires_grad_()
    high = 2 if type_.dtype == "bool" else min([4, *(size for size in type_.sizes if size)])
    return torch.randint(0, high, type_.sizes, generator=generator).to(getattr(torch, type_.dtype))
