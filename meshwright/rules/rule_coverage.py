"""Which tier serves each op of a Program; ops that none serves are warned of by name."""

from __future__ import annotations

import sys
import warnings

from meshwright.capture.program import Program
from meshwright.errors import RuleWarning
from meshwright.rules.resolve import tier
from meshwright.rules.rule import TIERS, Tier

PACKAGE = __name__.partition(".")[0]


def rule_coverage(program: Program) -> dict[Tier, tuple[str, ...]]:
    """The distinct ops of its segments, sorted, by the tier that serves them; two shapes of one op may have two."""
    found: dict[Tier, set[str]] = {name: set() for name in TIERS}
    for graph in (graph.at(program.batch) for graph in program.graphs):
        values = graph.values()
        for op in graph.ops:
            found[tier(op, values)].add(op.target)
    return {name: tuple(sorted(targets)) for name, targets in found.items()}


def warn_of_fallbacks(program: Program) -> None:
    """One warning that names the ops which run alike on every device, if there are any."""
    if targets := rule_coverage(program)["fallback"]:
        text = (
            f"no rule was found for {', '.join(targets)}: run alike on every device, which is right but never faster; "
            "mw.register_rule gives an op a rule"
        )
        warnings.warn(text, RuleWarning, stacklevel=_callers())


def _callers() -> int:
    """How many frames up, counted from the caller of this, the first is that is not the package's own."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
