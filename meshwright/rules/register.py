"""Users' rules: registered by notation, checked against the op's schema then, and proven when they first serve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature as python_signature
from typing import Any

from meshwright.caches import CACHES
from meshwright.errors import MeshwrightError, RuleError
from meshwright.rules.rule import Call, Lowering, Rule, Split, keep
from meshwright.rules.signature import Pattern, parse
from meshwright.rules.table import RULES

_USER: dict[str, Rule] = {}
_TRUSTED: set[str] = set()
_PROVEN: set[object] = CACHES.own(set())
_NOTATION = "operands -> results, as in 'm k, k n -> m n'"


def register_rule(
    target: str, signature: str, lower: Callable[[Split], Lowering] = keep, *, trusted: bool = False
) -> Rule:
    """A user's rule for an op that our table does not have; `target` as an Op writes it.

    It is proven on small random tensors when it first serves the op, and refused where it cannot be: `trusted=True`
    takes it at its word then. All that was remembered under other rules is forgotten (`meshwright.caches`).
    """
    if not isinstance(target, str):
        raise RuleError(f"a rule for {target!r}", "an op by name, as `my_ops.scale.default` or `my.module:function`")
    if not isinstance(signature, str):
        raise RuleError(f"{signature!r} as the rule of {target}", _NOTATION)
    if not callable(lower):
        raise RuleError(f"{lower!r} as the lowering of {target}", "a function from a Split to a Lowering")
    if target in RULES or packet(target) in RULES:
        raise RuleError(f"a rule for {target}", "an op that the table does not have", "see `meshwright rules`")
    try:
        pattern = parse(signature)
    except RuleError as error:
        raise RuleError(f"the rule {signature!r} of {target}: {error.given}", error.expected, error.todo) from error
    _check_counts(target, pattern)
    _USER[target] = Rule(signature, lower, "user")
    (_TRUSTED.add if trusted else _TRUSTED.discard)(target)
    CACHES.clear()
    return _USER[target]


def user_rules() -> Mapping[str, Rule]:
    """The rules that users have registered in this process."""
    return dict(_USER)


def forget_rule(target: str) -> None:
    """Take a user's rule back."""
    _USER.pop(target, None)
    _TRUSTED.discard(target)
    CACHES.clear()


def packet(target: str) -> str:
    """`aten.add.Tensor` -> `aten.add`: the name that the overloads of an operator share."""
    return target if ":" in target else target.rpartition(".")[0]


def user_rule(target: str) -> Rule | None:
    return _USER.get(target) or _USER.get(packet(target))


def prove_user_rule(rule: Rule, call: Call) -> None:
    """RuleError unless the rule holds for this call, on small random tensors and an axis of two; once per shapes.

    Where it cannot be tried it is refused, unless its user takes the blame: the op may run on no tensors of our making,
    make nothing but zeros of them, or the rule may fit its own sizes alone.
    """
    from meshwright.rules.findings import key_of, sample

    key = (key_of(call), rule)
    if key in _PROVEN:
        return
    try:
        rule.bind(call).sizes(call.types, call.result_types)
    except RuleError as error:
        raise _wrong(rule, call, error) from error
    small = sample(call)
    tried = small is not None and _prove(rule, call, small)
    if not tried and not is_trusted(call.op.target):
        raise RuleError(
            f"the rule {rule.text!r} registered for {call.op.target} cannot be tried: "
            + ("it does not fit smaller sizes" if small else "the op runs on no random tensors, or makes only zeros"),
            "an op that runs on small random tensors, so that its rule is proven before it is used",
            "register it with trusted=True to take it at its word",
        )
    _PROVEN.add(key)


def is_trusted(target: str) -> bool:
    """Whether the rule that serves this op was registered with `trusted=True`."""
    return (target if target in _USER else packet(target)) in _TRUSTED


def _prove(rule: Rule, call: Call, small: Any) -> bool:
    """Whether it could be tried."""
    from meshwright.cluster import logical_mesh
    from meshwright.rules.prove import prove_strategy
    from meshwright.rules.strategy import strategies_of

    mesh = logical_mesh({"x": 2})
    try:
        rule.bind(small.call).sizes(small.call.types, small.call.result_types)
    except RuleError:
        return False  # it fits the call's own sizes, and not the sample's
    try:
        for given in small.cases:
            for one in strategies_of(rule, given.op, given.values(), mesh):
                prove_strategy(given, one, mesh, tolerance=small.tolerance)
    except MeshwrightError as error:
        raise _wrong(rule, call, error) from error
    except Exception as error:  # the op and its lowering are the user's: on pieces they may raise anything
        raise _wrong(rule, call, RuleError(f"{type(error).__name__}: {error}")) from error
    return True


def _wrong(rule: Rule, call: Call, error: MeshwrightError) -> RuleError:
    given = f"the rule {rule.text!r} registered for {call.op.target} is wrong: {error.given}"
    return RuleError(given, error.expected, "correct it")


def _check_counts(target: str, pattern: Pattern) -> None:
    """Against what the op takes and returns, as far as it says."""
    known = [count for operator in _operators(target) if (count := _counts(operator)) is not None]
    if not known:
        return
    operands, results = len(pattern.operands), len(pattern.results)
    if not any(least <= operands <= most for least, most, _ in known):
        takes = " or ".join(f"{a} to {b}" if a != b else str(a) for a, b in dict.fromkeys(c[:2] for c in known))
        raise RuleError(f"the rule {pattern.text!r} of {target} has {operands} operands", f"{takes}, one per tensor")
    if not any(made in (None, results) for *_, made in known):
        makes = " or ".join(str(made) for made in dict.fromkeys(count[2] for count in known))
        raise RuleError(f"the rule {pattern.text!r} of {target} has {results} results", f"{makes}, one per tensor")


def _operators(target: str) -> list[Any]:
    """What the name stands for: one operator or function, or all overloads of a name without one."""
    from meshwright.capture.targets import resolve

    try:
        found: Any = resolve(target)
        overloads = getattr(found, "overloads", None)
        operators = [getattr(found, name) for name in overloads()] if overloads else [found]
    except (AttributeError, ImportError, ValueError) as error:
        raise RuleError(
            f"a rule for {target}, which cannot be found: {error}",
            "an operator that is defined (`my_ops.scale.default`) or a function (`my.module:function`)",
            "import what defines it first",
        ) from error
    if not operators or not all(callable(operator) for operator in operators):
        raise RuleError(f"a rule for {target}, which is no operator", "an operator or a function", "name it in full")
    return operators


def _counts(operator: Any) -> tuple[int, int, int | None] | None:
    """The fewest and most tensors it takes and how many it returns; None where that depends on the call."""
    from meshwright import torch_compat

    counts = torch_compat.tensor_counts(operator)
    if counts is not None or torch_compat.argument_names(operator):
        return counts
    try:
        return 0, len(python_signature(operator).parameters), None
    except (TypeError, ValueError):
        return None
