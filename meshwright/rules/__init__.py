"""Rules: what an op's dims mean, and every way to run it on a mesh that follows."""

from meshwright.rules.register import register_rule
from meshwright.rules.resolve import resolve_rule, tier
from meshwright.rules.rule import Call, Lowering, Rule, Split
from meshwright.rules.rule_coverage import rule_coverage, warn_of_fallbacks
from meshwright.rules.signature import CARRY, Signature
from meshwright.rules.strategies import strategies, strategy
from meshwright.rules.strategy import Narrow, Strategy, Way, parse_factors

__all__ = [
    "CARRY",
    "Call",
    "Lowering",
    "Narrow",
    "Rule",
    "Signature",
    "Split",
    "Strategy",
    "Way",
    "parse_factors",
    "register_rule",
    "resolve_rule",
    "rule_coverage",
    "strategies",
    "strategy",
    "tier",
    "warn_of_fallbacks",
]
