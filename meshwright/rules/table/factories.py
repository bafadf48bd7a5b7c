"""Factories: nothing to shard, so every rank makes the whole; consumers slice what they need for free."""

from __future__ import annotations

from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import opaque
from meshwright.rules.signature import Signature


def invariant(call: Call) -> Signature:
    terms, fixed = opaque((*call.types, *call.result_types))
    return Signature(terms[: len(call.types)], terms[len(call.types) :], fixed)


_NAMES = "arange empty eye full linspace ones scalar_tensor zeros new_empty new_full new_ones new_zeros "
_NAMES += "tril_indices triu_indices hann_window hamming_window logspace"
RULES = {f"aten.{name}": Rule(invariant, shown="-> x!") for name in _NAMES.split()}
RULES["meshwright.capture.functional:constant"] = Rule(invariant, shown="-> x!")
