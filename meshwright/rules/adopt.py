"""Rules adopted from DTensor: those that users gave it, and those that it has for what an op decomposes to.

DTensor takes an op apart into ATen ops and has rules for many of these, forward and backward. It is asked on a mesh
without process groups: a way to place the operands that needs no communication goes through, one that needs some
raises. What goes through is a candidate; the proof decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from meshwright import torch_compat
from meshwright.capture.program import Ref, TorchConstant, map_leaves
from meshwright.capture.targets import resolve
from meshwright.errors import RuleError, RuleWarning
from meshwright.layout.states import Layout, P, R, S, State
from meshwright.rules.findings import Finding, Sample, cuts, partials, prove_findings, sample
from meshwright.rules.prove import Case, run_by_position
from meshwright.rules.rule import Call, Rule

WAYS = 2
"""Ranks of the mesh that DTensor is asked about."""


def given_to_dtensor(call: Call) -> Callable[..., Any] | None:
    """The function that a user registered for this op with DTensor's `register_sharding`."""
    if ":" in call.op.target or not torch_compat.dtensor_is_loaded():
        return None
    return torch_compat.registered_sharding(resolve(call.op.target))


def registered(call: Call, sharding: Callable[..., Any]) -> Rule | None:
    """The rule that a user gave to DTensor: those of its placements that the proof confirms; the others are named."""
    small = sample(call)
    if small is None:
        raise RuleError(
            f"the sharding registered with DTensor for {call.op.target} cannot be proven",
            "an op that runs on small random tensors",
            "register a rule with mw.register_rule",
        )
    found = list(dict.fromkeys(_acceptable(small.case, sharding)))
    proven = prove_findings(small, found)
    for why in proven.dropped:
        text = f"a placement registered with DTensor for {call.op.target} is wrong and is left out: {why}"
        warnings.warn(text, RuleWarning, stacklevel=2)
    return proven.rule(call, "user")


def adoptions(small: Sample) -> Iterator[Finding]:
    """The placements of operands that DTensor's own rules take forward and backward as they are; none where it has no
    rule for some part of the op."""
    if not torch.distributed.is_available():
        return
    try:
        mesh = torch_compat.bare_mesh(WAYS)
    except Exception:  # a torch that makes no such mesh (a contract test says so): an unknown op still aborts no plan
        return
    given, types = small.case, small.call.types
    same = {value.type.dtype for value in given.op.results} <= {type_.dtype for type_ in types}
    for cut in (*cuts(types), *(partials(types) if same else ())):
        try:
            results = _run_on_dtensors(given, cut, mesh)
        except NotImplementedError:
            return  # DTensor knows no rule for some part of the op, wherever its operands are
        except Exception:
            continue  # this placement needs communication, or makes no sense: DTensor raises many things
        if results is not None and R not in results:
            yield Finding(cut, results)


def _acceptable(given: Case, sharding: Callable[..., Any]) -> Iterator[Finding]:
    """What a user's function returns, as findings; the placement that shards nothing is ours already."""
    mesh = torch_compat.bare_mesh(WAYS)
    specs = {f"operand{i}": torch_compat.tensor_spec(t.detach(), mesh) for i, t in enumerate(given.operands)}
    names = iter(specs)

    def leaf(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return specs[next(names)]
        return getattr(torch, arg.name) if isinstance(arg, TorchConstant) else arg

    op, target = given.op, given.op.target
    expected = f"pairs of {len(op.results)} output and {len(given.operands)} input placements"
    try:
        pairs = list(sharding(*map_leaves(op.args, leaf), **{k: map_leaves(v, leaf) for k, v in op.kwargs}))
        sides = [tuple(_states(side) for side in pair) for pair in pairs]
    except Exception as error:  # a user's function: whatever it raises is told with the op's name
        raise RuleError(f"the sharding registered with DTensor for {target}: {error}", expected) from error
    for pair in sides:
        if len(pair) != 2 or (len(pair[0]), len(pair[1])) != (len(op.results), len(given.operands)):
            raise RuleError(f"the sharding registered with DTensor for {target} gives {pairs}", expected)
        results, operands = pair
        if any(state != R for state in operands) and None not in results + operands and R not in results:
            yield Finding(tuple(s for s in operands if s), tuple(s for s in results if s))


def _states(placements: Sequence[Any]) -> tuple[State | None, ...]:
    """Of the tensors among an op's arguments; other arguments have no placement."""
    return tuple(_state(placement) for placement in placements if placement is not None)


def _state(placement: Any) -> State | None:
    """A placement as a State on an axis that shards something; None where we have no such state."""
    kind, of = torch_compat.placement_kind(placement)
    return {"shard": lambda: S(of), "replicate": lambda: R, "sum": lambda: P}.get(kind, lambda: None)()


def _run_on_dtensors(given: Case, cut: Sequence[State], mesh: Any) -> tuple[State, ...] | None:
    pieces = [
        (t.detach().chunk(WAYS, s.dim)[0] if s.dim is not None else t.detach()).clone().requires_grad_(t.requires_grad)
        for t, s in zip(given.operands, cut, strict=True)
    ]
    tensors = [torch_compat.as_dtensor(t, mesh, _placement(s)) for t, s in zip(pieces, cut, strict=True)]
    with torch_compat.without_onednn():
        plain = run_by_position(given.op, pieces)
        results: tuple[Any, ...] = run_by_position(given.op, tensors)
        states = tuple(_state(result.placements[0]) for result in results)
        # DTensor also slices what is whole: then it has run another op than the one on these pieces.
        if any(r.to_local().shape != p.shape for r, p in zip(results, plain, strict=True)):
            return None
        _backward(results, states, tensors, mesh)
    return None if None in states else tuple(state for state in states if state)


def _backward(results: Sequence[Any], states: Sequence[State | None], tensors: Sequence[Any], mesh: Any) -> None:
    """Gradients, given as results are placed: raises where they need communication."""
    pairs = [(r, s) for r, s in zip(results, states, strict=True) if r.requires_grad and s]
    wanted = [t for t in tensors if t.requires_grad]
    if pairs and wanted:
        upstream = [
            torch_compat.as_dtensor(torch.ones_like(r.to_local()), mesh, _placement(s if s.is_shard else R))
            for r, s in pairs
        ]
        torch.autograd.grad([r for r, _ in pairs], wanted, upstream, allow_unused=True)


def _placement(state: State) -> Any:
    return Layout.of(state).placements()[0]
