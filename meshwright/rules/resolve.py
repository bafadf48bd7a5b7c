"""Which rule serves an op: our table, a user's rule, DTensor's, one found by running the op, then `I` everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import torch

from meshwright.caches import CACHES
from meshwright.capture.program import Op, TensorType, Value
from meshwright.capture.sizes import BatchSize
from meshwright.errors import RuleError
from meshwright.rules.register import packet, prove_user_rule, user_rule
from meshwright.rules.rule import Call, Rule, Tier
from meshwright.rules.table import RULES
from meshwright.rules.table.factories import invariant

_FOUND: dict[object, Rule | None] = CACHES.own({})

# Capture turns the random ops it knows into ops that draw by counter. Others are refused: run as they are, every rank
# would draw its own (or the same) numbers and the result would depend on the plan.
_RANDOM = """
    rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal poisson rrelu
    native_dropout alpha_dropout feature_dropout feature_alpha_dropout uniform exponential random geometric
    log_normal cauchy binomial
"""
RANDOM = frozenset(f"aten.{name}" for name in _RANDOM.split())


def resolve_rule(op: Op, types: tuple[TensorType, ...] | None = None) -> Rule:
    """The rule for this op, with the tier it came from. An op nobody knows runs alike on every rank.

    `types` of its operands, sizes fixed: with them, DTensor is asked about such an op (see `adopt`), and then it is
    tried on small tensors (see `discover`).
    """
    _refuse_random(op)
    for key in (op.target, packet(op.target)):
        if key in RULES:
            return RULES[key]
    users = user_rule(op.target)
    if types is None or any(isinstance(size, BatchSize) for type_ in types for size in type_.shape):
        return users or FALLBACK
    call = Call(op, types)
    if users:
        prove_user_rule(users, call)
        return users
    return _found(call) or FALLBACK


def _found(call: Call) -> Rule | None:
    """The rule of an op that is neither in the table nor registered with us, looked for once per op and shapes."""
    from meshwright.rules.adopt import given_to_dtensor, registered
    from meshwright.rules.findings import key_of

    sharding = given_to_dtensor(call)
    key = (key_of(call), sharding)
    if key not in _FOUND:
        _FOUND[key] = registered(call, sharding) if sharding else _searched(call)
    return _FOUND[key]


def _searched(call: Call) -> Rule | None:
    """What DTensor says of the op, and what running it shows beyond that; all of it proven, and none of it here."""
    from meshwright.rules.copied import EndedError
    from meshwright.rules.isolated import isolated
    from meshwright.rules.trials import tried, tried_with_care

    if torch.distributed.is_available():
        import_module("torch.distributed.tensor")  # takes a second, in each copy if not here
    for attempt in (tried, tried_with_care):
        try:
            found = isolated(attempt, call)
        except EndedError:
            continue
        return None if found is None else found[0].rule(call, found[1])
    return None


def tier(op: Op, values: Mapping[str, Value] | None = None) -> Tier:
    """Where this op's rule comes from. Without the values it reads, only table, user and fallback are told apart."""
    types = None if values is None else tuple(values[name].type for name in op.operands())
    return resolve_rule(op, types).tier


FALLBACK = Rule(invariant, tier="fallback")


def _refuse_random(op: Op) -> None:
    name, call = packet(op.target), Call(op, ())
    random = name.removesuffix("_") in RANDOM
    if name == "aten.dropout":
        random = bool(call.arg(1, "p")) and bool(call.arg(2, "train"))
    if name == "aten.scaled_dot_product_attention":
        random = bool(call.arg(4, "dropout_p", 0.0))
    if random:
        raise RuleError(
            f"the random op {op}",
            "randomness from dropout, rand, randn, bernoulli, uniform_ or normal_, which draw by counter",
            "use one of these instead",
        )
