"""The proof of a rule: run every strategy's lowering on simulated ranks and compare with the unsharded op.

Checked: the result, by its declared layout; the gradient of every operand, by its declared layout (this is where
`R` and `I` differ); local shapes; and the collectives executed, forward and backward apart, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.program import Op, Ref, TensorType, TorchConstant, Value, map_leaves
from meshwright.capture.targets import call
from meshwright.cluster.mesh import Mesh
from meshwright.errors import RuleError
from meshwright.layout.record import record
from meshwright.layout.states import Layout, R, State, chunk_length
from meshwright.layout.steps import Collective
from meshwright.layout.threads import simulate
from meshwright.rules.strategy import Strategy

_CPU = torch.device("cpu")
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    """An op with concrete global operands, in the order of `op.operands()`."""

    op: Op
    operands: tuple[Tensor, ...]

    def values(self) -> dict[str, Value]:
        pairs = zip(self.op.operands(), self.operands, strict=True)
        return {name: Value(name, type_of(tensor), tensor.requires_grad) for name, tensor in pairs}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank (or the unsharded op) made: results, operand gradients, collectives."""

    results: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()


Runner = Callable[[Mesh, Callable[[int], Outcome]], list[Outcome]]


def case(target: str, *args: Any, **kwargs: Any) -> Case:
    """A Case from a call with real tensors; the op is run once to learn its result types."""
    tensors: list[Tensor] = []

    def leaf(arg: Any) -> Any:
        if isinstance(arg, Tensor):
            tensors.append(arg)
            return Ref(f"operand{len(tensors) - 1}")
        return TorchConstant(str(arg).removeprefix("torch.")) if isinstance(arg, torch.dtype) else arg

    op = Op(target, map_leaves(args, leaf), tuple((k, map_leaves(v, leaf)) for k, v in kwargs.items()), ())
    return case_of(op, tensors)


def case_of(op: Op, operands: Sequence[Tensor]) -> Case:
    """A Case from an op and its operands; the result types are those that running it gives."""
    results = run_by_position(op, operands)
    names = [value.name for value in op.results] or [f"result{i}" for i in range(len(results))]
    named = tuple(Value(n, type_of(t), t.requires_grad) for n, t in zip(names, results, strict=True))
    return Case(replace(op, results=named), tuple(operands))


def prove_strategy(
    given: Case,
    strategy: Strategy,
    mesh: Mesh,
    *,
    tolerance: float = TOLERANCE,
    run: Runner | None = None,
    each: Sequence[Strategy] | None = None,
) -> None:
    """Execute one strategy on every rank and check all that it declares.

    `run` runs a function of the rank on every rank and returns what all of them made; simulated ranks by default.
    `each`: every rank's own, where pieces differ from rank to rank.
    """
    own = list(each) if each is not None else [strategy] * mesh.world_size
    for mine in own:
        mine.verify(given.op, given.values(), mesh)
    check = _Check(f"strategy {strategy} of {given.op}", mesh, tolerance)
    truth, upstream = _truth(given)
    pieces = [distribute(t.detach(), layout, mesh) for t, layout in zip(given.operands, strategy.operands, strict=True)]
    duals = [
        None if g is None else distribute(g, _dual(layout), mesh)
        for g, layout in zip(upstream, strategy.results, strict=True)
    ]

    def rank(index: int) -> Outcome:
        operands = [
            piece[index].clone().requires_grad_(whole.requires_grad)
            for piece, whole in zip(pieces, given.operands, strict=True)
        ]
        mine = [None if dual is None else dual[index] for dual in duals]
        return _step(own[index].lowering, operands, mine, check.types)

    ranks = (run or _simulated)(mesh, rank)
    check.collectives(own, ranks)
    for i, layout in enumerate(strategy.results):
        check.value(f"result {i}", [r.results[i] for r in ranks], layout, truth.results[i], summed="P")
    for i, layout in enumerate(strategy.operands):
        gradient = truth.gradients[i]
        if gradient is not None:
            locals_ = [_or_zeros(r.gradients[i], pieces[i][n]) for n, r in enumerate(ranks)]
            check.value(f"the gradient of operand {i}", locals_, layout, gradient, summed="R")


def _simulated(mesh: Mesh, rank: Callable[[int], Outcome]) -> list[Outcome]:
    return simulate(dict(zip(mesh.names, mesh.sizes, strict=True)), rank)


def distribute(whole: Tensor, layout: Layout, mesh: Mesh) -> list[Tensor]:
    """Every rank's piece of a value, in rank order; a partial is split at random."""
    pieces = [whole]
    for state, size in zip(layout, mesh.sizes, strict=True):
        pieces = [part for piece in pieces for part in _split(piece, state, size)]
    return [piece.contiguous() for piece in pieces]


@dataclass(frozen=True, slots=True)
class _Check:
    where: str
    mesh: Mesh
    tolerance: float

    def types(self, lowering: Op, results: Sequence[Tensor]) -> None:
        for result, declared in zip(results, lowering.results, strict=True):
            if type_of(result) != declared.type:
                raise RuleError(f"{self.where} makes {type_of(result)}", f"{declared.type}, as declared")

    def collectives(self, own: Sequence[Strategy], ranks: Sequence[Outcome]) -> None:
        for strategy, outcome in zip(own, ranks, strict=True):
            for side, ran, declared in (
                ("forward", outcome.forward, strategy.collectives_forward),
                ("backward", outcome.backward, strategy.collectives_backward),
            ):
                if ran != declared:
                    given = f"{self.where} ran {_listed(ran)} {side}"
                    raise RuleError(given, f"{_listed(declared)}, as declared")

    def value(self, what: str, pieces: list[Tensor], layout: Layout, truth: Tensor, summed: str) -> None:
        """Put the pieces together as the layout says, last axis first, and compare."""
        for state, size in zip(reversed(tuple(layout)), reversed(self.mesh.sizes), strict=True):
            groups = [pieces[i : i + size] for i in range(0, len(pieces), size)]
            pieces = [self._join(what, group, state, summed) for group in groups]
        self._equal(f"{what} in layout {layout}", pieces[0], truth)

    def _join(self, what: str, group: list[Tensor], state: State, summed: str) -> Tensor:
        if state.dim is not None:
            return torch.cat(group, state.dim)
        if state.kind == summed:
            return torch.stack(group).sum(0, dtype=group[0].dtype)
        for other in group[1:]:
            self._equal(f"{what}, declared {state} but different on two ranks,", other, group[0])
        return group[0]

    def _equal(self, what: str, found: Tensor, truth: Tensor) -> None:
        if found.shape != truth.shape:
            raise RuleError(f"{self.where}: {what} has shape {tuple(found.shape)}", f"{tuple(truth.shape)}")
        if not (truth.is_floating_point() or truth.is_complex()):
            if not torch.equal(found, truth):
                raise RuleError(f"{self.where}: {what} is {found}", f"{truth}")
            return
        scale = max(1.0, truth[truth.isfinite()].abs().max().item() if truth.isfinite().any() else 1.0)
        if not torch.allclose(found, truth, rtol=0, atol=self.tolerance * scale, equal_nan=True):
            off = (found - truth).abs().max().item()
            raise RuleError(f"{self.where}: {what} is off by {off:.3g}", "the unsharded op's value")


def _truth(given: Case) -> tuple[Outcome, list[Tensor | None]]:
    operands = [t.detach().clone().requires_grad_(t.requires_grad) for t in given.operands]
    results = run_by_position(given.op, operands)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(r.shape, generator=generator, dtype=r.dtype) if r.requires_grad else None for r in results]
    outcome = _step(given.op, operands, upstream)
    gradients = tuple(
        _or_zeros(g, t) if t.requires_grad else None for g, t in zip(outcome.gradients, operands, strict=True)
    )
    return replace(outcome, gradients=gradients), upstream


def _step(
    op: Op,
    operands: list[Tensor],
    upstream: Sequence[Tensor | None],
    check: Callable[[Op, Sequence[Tensor]], None] = lambda op, results: None,
) -> Outcome:
    """Forward, then backward from the gradients given, with the collectives of each."""
    with record() as forward:
        results = run_by_position(op, operands)
    check(op, results)
    with record() as backward:
        gradients = gradients_of(results, upstream, operands)
    return Outcome(tuple(r.detach() for r in results), gradients, tuple(forward), tuple(backward))


def gradients_of(
    results: Sequence[Tensor], upstream: Sequence[Tensor | None], operands: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Of every operand, from those of the results."""
    pairs = [(r, g) for r, g in zip(results, upstream, strict=True) if g is not None and r.requires_grad]
    wanted = [t for t in operands if t.requires_grad]
    if not pairs or not wanted:
        return (None,) * len(operands)
    outputs, given = zip(*pairs, strict=True)
    found = dict(zip(map(id, wanted), torch.autograd.grad(outputs, wanted, given, allow_unused=True), strict=True))
    return tuple(found.get(id(t)) for t in operands)


def run_by_position(op: Op, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Call by position: one value read twice may be in two layouts."""
    position = iter(range(len(operands)))
    placed = op.map(lambda leaf: Ref(f"operand{next(position)}") if isinstance(leaf, Ref) else leaf)
    return call(placed, {f"operand{i}": t for i, t in enumerate(operands)}, _CPU)


def _split(piece: Tensor, state: State, size: int) -> list[Tensor]:
    if state.dim is not None:
        lengths = [chunk_length(piece.shape[state.dim], size, index) for index in range(size)]
        return list(torch.split(piece, lengths, state.dim))
    if state.kind != "P":
        return [piece] * size
    generator = torch.Generator().manual_seed(piece.numel())
    parts = [torch.randn(piece.shape, generator=generator, dtype=torch.float64) for _ in range(size - 1)]
    parts = [part.to(piece.dtype) for part in parts]
    return [*parts, piece - torch.stack(parts).sum(0, dtype=piece.dtype) if parts else piece]


def _dual(layout: Layout) -> Layout:
    """Where a result's gradient is: sharded alike, or the same on every rank."""
    return Layout(tuple(state if state.is_shard else R for state in layout))


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _listed(collectives: Sequence[Collective]) -> str:
    return ", ".join(map(str, collectives)) or "no collectives"


def type_of(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
