"""The proof catches what it is there to catch: each rule here is wrong in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import user_ops  # noqa: F401  the targets below name it
from rule_operands import f

from meshwright.cluster import logical_mesh
from meshwright.errors import RuleError
from meshwright.layout.steps import Collective
from meshwright.rules import Lowering, Split, register_rule
from meshwright.rules.prove import Case, case
from meshwright.rules.register import forget_rule
from meshwright.rules.rule import keep
from meshwright.rules.strategies import prove

MESH = logical_mesh({"x": 2})


def prove_with(given: Case, signature: str, lower: Callable[[Split], Lowering] = keep) -> int:
    """Prove the case under this rule alone."""
    register_rule(given.op.target, signature, lower)
    try:
        return prove(given, MESH)
    finally:
        forget_rule(given.op.target)


def project() -> Case:
    return case("user_ops:project", f(4, 6), f(12, 6), f(12))


def test_the_right_rule_passes() -> None:
    assert prove_with(project(), "... k, n k, n[k=P] -> ... n") == 4


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("... k, n k, n -> ... n", "result 0 in layout .P. is off"),  # the bias is added by every rank
        ("... k, n k, n[k=P] -> ... n[k=I]", "declared I but different on two ranks"),
        ("... k, n k[d0=I], n[k=P] -> ... n", "gradient of operand 1, declared I but different"),
        ("... k[n=I], n k, n[k=P] -> ... n", "gradient of operand 0, declared I but different"),
        ("... k, n k, n[k=P d0=P] -> ... n", "result 0 in layout .S.0.. is off"),
    ],
)
def test_a_wrong_layout_is_caught(signature: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        prove_with(project(), signature)


def test_a_dim_that_is_not_free_is_caught() -> None:
    given = case("user_ops:softened", f(4, 6))
    assert prove_with(given, "b n! -> b n!") == 2
    with pytest.raises(RuleError, match="is off by"):
        prove_with(given, "b n -> b n")


def test_a_mean_taken_for_a_sum_is_caught() -> None:
    with pytest.raises(RuleError, match="is off by"):
        prove_with(case("user_ops:average", f(4, 6)), "b n -> b")


def test_replicated_values_with_partial_gradients_are_not_invariant() -> None:
    """`R` and `I` look alike forward; only the gradient tells them apart."""
    given = case("aten.mul.Tensor", f(4, 6), f(6))
    scaled = case("user_ops:project", f(4, 6), f(12, 6), f(12))
    assert prove(given, MESH) == 3
    with pytest.raises(RuleError, match="declared I but different"):
        prove_with(scaled, "... k, n k[d0=I], n[k=P] -> ... n")


def test_a_wrong_local_shape_is_caught() -> None:
    given = case("user_ops:halves", f(8, 6))
    assert prove_with(given, "(a b) c -> a b! c") == 3

    def pretend(split: Split) -> Lowering:
        op = split.local
        results = tuple(replace(value, type=replace(value.type, shape=(1, 2, 3))) for value in op.results)
        return Lowering(replace(op, results=results))

    with pytest.raises(RuleError, match=r"makes float64\[1, 2, 3\]"):
        prove_with(given, "(a b) c -> a b! c", pretend)

    def lengthen(split: Split) -> Lowering:
        return Lowering(replace(split.local, target="user_ops:quarters"))

    with pytest.raises(RuleError, match=r"makes float64\[2, 4, 6\]"):
        prove_with(given, "(a b) c -> a b! c", lengthen)


def talk(*declared: Collective) -> Callable[[Split], Lowering]:
    def lower(split: Split) -> Lowering:
        axis = split.axis("b")
        if not axis:
            return keep(split)
        return Lowering(replace(split.local, kwargs=(("axis", axis),)), declared)

    return lower


def test_collectives_are_checked_to_the_byte() -> None:
    given, right = case("user_ops:chatty", f(4, 6)), Collective("all_reduce", "x", 2 * 6 * 8)
    assert prove_with(given, "b n! -> b n!", talk(right)) == 2
    for wrong in ((), (right, right), (replace(right, bytes=95),), (replace(right, kind="all_gather"),)):
        with pytest.raises(RuleError, match="as declared"):
            prove_with(given, "b n! -> b n!", talk(*wrong))


HALF = {
    "embedding": lambda x: case("aten.embedding.default", x(12, 6), torch.randint(0, 12, (4, 6))),
    "loss": lambda x: case("aten.cross_entropy_loss.default", x(12, 24), torch.randint(0, 24, (12,))),
    "batch norm": lambda x: case(
        "meshwright.capture.functional:batch_norm",
        x(12, 6, 4),
        *(torch.rand(6).requires_grad_() for _ in range(2)),  # weights stay in single precision, as in mixed training
        *(torch.rand(6), torch.rand(6), 0.1, 1e-5),
    ),
    "attention": lambda x: case(
        "aten.scaled_dot_product_attention.default",
        *(x(2, 4, 6, 8), x(2, 2, 6, 8), x(2, 2, 6, 8)),
        is_causal=True,
        enable_gqa=True,
    ),
    "layer norm": lambda x: case("aten.layer_norm.default", x(4, 12), (12,), x(12), x(12)),
    "rms norm": lambda x: case("aten.rms_norm.default", x(4, 12), (12,), x(12), 1e-5),
    "softmax": lambda x: case("aten.softmax.int", x(4, 12), 1),
    "mean": lambda x: case("aten.mean.dim", x(12, 6), (0,)),
    "mean loss": lambda x: case("aten.mse_loss.default", x(12, 6), x(12, 6)),
    "linear": lambda x: case("aten.linear.default", x(4, 12), x(6, 12), x(6)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_lowerings_hold_in_the_precisions_models_run_in(name: str, dtype: torch.dtype) -> None:
    """Local types are checked too: nothing comes out wider than the op itself would."""
    given = HALF[name](lambda *shape: torch.rand(shape).to(dtype).requires_grad_())
    tolerance = 1e-5 if dtype is torch.float32 else 0.06
    assert prove(given, MESH, tolerance=tolerance) >= 2
