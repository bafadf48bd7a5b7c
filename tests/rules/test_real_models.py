"""The ops of real models: what 75 architectures of transformers and diffusers hold when captured."""

from __future__ import annotations

from meshwright.rules.coverage import coverage


def test_every_op_of_real_models_is_served_by_the_table() -> None:
    """But two, each of one model, whose result depends on where in memory or how far along the data an element is."""
    found = list(coverage())
    assert len(found) == 151
    others = {one.op for one in found if one.tier != "table"}
    assert others == {"aten.as_strided.default", "aten.masked_scatter.default"}
    assert all("->" in one.factors for one in found if one.op not in others)
