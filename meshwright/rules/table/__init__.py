"""The table: one rule per op, by target or by the name its overloads share. Split by family into small files."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.rules.rule import Rule
from meshwright.rules.table import (
    attention,
    convolution,
    elementwise,
    embedding,
    experts,
    factories,
    indexing,
    loss,
    matmul,
    norms,
    random,
    recurrent,
    reductions,
    views,
)

FAMILIES: Mapping[str, Mapping[str, Rule]] = MappingProxyType(
    {
        module.__name__.rpartition(".")[2]: module.RULES
        for module in (
            matmul,
            experts,
            attention,
            norms,
            convolution,
            recurrent,
            embedding,
            loss,
            elementwise,
            reductions,
            indexing,
            views,
            factories,
            random,
        )
    }
)
RULES: Mapping[str, Rule] = MappingProxyType(
    {target: rule for rules in FAMILIES.values() for target, rule in rules.items()}
)
UNPROVEN: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("aten.empty", "aten.new_empty", "aten.empty_like"), "uninitialised memory has no value"),
        **dict.fromkeys(
            (f"aten.{name}.data" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")), "nothing is sharded"
        ),
        "meshwright.grouped_mm": "as aten._grouped_mm",
        "transformers.grouped_mm_fallback": "as aten._grouped_mm",
    }
)
"""Rules whose strategies are not executed by the proof, and why; a test holds that all others are."""
