"""What `saved` says backward reads is what autograd keeps, model by model and op by op, to the byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import rule_cases
import torch
from family_programs import FAMILIES, captured, flat_ops, model_and_batch, next_buffers
from torch import Tensor

from meshwright.capture.program import Op, Program, Value
from meshwright.cluster import Mesh, logical_mesh
from meshwright.layout.threads import simulate
from meshwright.profile import is_view, saved
from meshwright.profile.operands import packet, type_bytes
from meshwright.rules import Strategy, strategies
from meshwright.rules.prove import Case, case, case_of, distribute, run_by_position
from meshwright.rules.strategy import local_operands
from meshwright.torch_compat import without_onednn


def floats(*shape: int) -> Tensor:
    return torch.rand(*shape).add(0.1).requires_grad_()


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def kept_by_autograd(run: Callable[[], object]) -> dict[int, Tensor]:
    """Tensors that autograd keeps for backward, one per storage. They are held here, so no address is reused."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(storage(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return kept


def kept_by_program(program: Program) -> int:
    """Bytes of saved values, views counted as what they are views of, parameters and buffers aside; and auxiliaries."""
    ops, values = flat_ops(program)
    base: dict[str, str] = {}
    made = {value.name: type_bytes(value.type) for op in ops for value in op.results}
    made = {name: size for name, size in made.items() if name not in next_buffers(program)}
    kept: set[str] = set()
    auxiliary = 0
    for op in ops:
        operands = op.operands()
        if is_view(op):
            base.update({value.name: base.get(operands[0], operands[0]) for value in op.results})
        found = saved(op, values)
        names = [operands[i] for i in found.operands] + [op.results[i].name for i in found.results]
        kept |= {base.get(name, name) for name in names}
        auxiliary += found.auxiliary_bytes
    return auxiliary + sum(made[name] for name in kept if name in made)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_keeps_the_bytes_its_program_says(family: str) -> None:
    model, batch = model_and_batch(family)
    outside = {storage(t) for t in (*model.parameters(), *model.buffers(), *batch.values())}
    kept = kept_by_autograd(lambda: model(**batch))
    expected = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in outside)
    assert kept_by_program(captured(family)) == expected


SINGLE = {
    "mul": lambda: case("aten.mul.Tensor", floats(3, 4), floats(3, 4)),
    "mul, one without gradient": lambda: case("aten.mul.Tensor", floats(3, 4), torch.rand(3, 4)),
    "mul by a number": lambda: case("aten.mul.Tensor", floats(3, 4), 2.0),
    "div": lambda: case("aten.div.Tensor", floats(3, 4), floats(3, 4)),
    "div by a number": lambda: case("aten.div.Tensor", floats(3, 4), 2.0),
    "softmax": lambda: case("aten.softmax.int", floats(3, 4), 1),
    "bmm": lambda: case("aten.bmm.default", floats(2, 3, 4), floats(2, 4, 5)),
    "addmm": lambda: case("aten.addmm.default", floats(5), floats(3, 4), floats(4, 5)),
    "matmul": lambda: case("aten.matmul.default", floats(2, 3, 4), floats(4, 5)),
    "where": lambda: case("aten.where.self", torch.rand(3, 4) > 0.5, floats(3, 4), floats(3, 4)),
    "masked_fill": lambda: case("aten.masked_fill.Scalar", floats(3, 4), torch.rand(3, 4) > 0.5, 0.0),
    "group_norm": lambda: case("aten.group_norm.default", floats(2, 4, 3), 2, floats(4), floats(4)),
    "max_pool2d": lambda: case("aten.max_pool2d.default", floats(2, 4, 4, 4), (2, 2)),
    "mse_loss": lambda: case("aten.mse_loss.default", floats(3, 4), floats(3, 4)),
    "amax": lambda: case("aten.amax.default", floats(3, 4), (1,)),
    "max.dim": lambda: case("aten.max.dim", floats(3, 4), 1),
    "pow": lambda: case("aten.pow.Tensor_Scalar", floats(3, 4), 3),
    "gather": lambda: case("aten.gather.default", floats(3, 4), 1, torch.zeros(3, 2, dtype=torch.int64)),
    "comparison": lambda: case("aten.gt.Tensor", floats(3, 4), floats(3, 4)),
}
UNARY = """
    abs acos asin atan cos cosh elu erf exp expm1 gelu hardsigmoid hardswish hardtanh leaky_relu log log1p log2 logit
    mish neg reciprocal relu relu6 rsqrt selu sigmoid silu sin sinh softplus softshrink sqrt square tan tanh clone
    floor sign
"""


def check(lowering: Op, operands: list[Tensor], values: list[Value], where: str) -> None:
    """Operands and results kept are those named; what else is kept has the bytes named."""
    made: list[tuple[Tensor, ...]] = []
    kept = kept_by_autograd(lambda: made.append(run_by_position(lowering, operands)))
    found = saved(lowering, values)
    named = {storage(operands[i]) for i in found.operands} | {storage(made[0][i]) for i in found.results}
    touched = {storage(t) for t in (*operands, *made[0])}
    assert named == set(kept) & touched, where
    assert found.auxiliary_bytes == sum(t.untyped_storage().nbytes() for k, t in kept.items() if k not in touched), (
        where
    )


def check_case(given: Case, where: str) -> None:
    check(given.op, list(given.operands), [given.values()[name] for name in given.op.operands()], where)


@pytest.mark.parametrize("name", SINGLE)
def test_an_op_keeps_what_it_says(name: str) -> None:
    check_case(SINGLE[name](), name)


def test_unary_ops_keep_what_they_say() -> None:
    for name in UNARY.split():
        check_case(case(f"aten.{name}.default", floats(3, 4).detach().mul(0.4).requires_grad_()), name)


SDPA, GROUPED = "aten.scaled_dot_product_attention.default", {"is_causal": True, "enable_gqa": True}
# Autograd keeps more here, and nobody plans around it: sums of one element, a vector before a batch of matrices,
# training BatchNorm (a Program holds another op), results that have no gradient after all.
MORE_THAN_SAID = {"einsum", "matmul", "batch_norm", "float_power", "argsort", "isfinite", "isclose"}


@pytest.mark.parametrize("family", rule_cases.FAMILIES)
def test_no_op_of_the_table_keeps_more_than_it_says(family: str) -> None:
    for given in map(in_single_precision, rule_cases.cases(family)):
        operands = list(given.operands)
        made: list[tuple[Tensor, ...]] = []
        with without_onednn():  # as segments run
            kept = kept_by_autograd(lambda: made.append(run_by_position(given.op, operands)))  # noqa: B023  used at once
        found = saved(given.op, [given.values()[name] for name in given.op.operands()])
        named = {storage(operands[i]) for i in found.operands} | {storage(made[0][i]) for i in found.results}
        touched = {storage(t) for t in (*operands, *made[0])}
        beside = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in touched)
        if set(kept) & touched - named or beside > found.auxiliary_bytes:
            assert packet(given.op.target) in MORE_THAN_SAID, given.op


def in_single_precision(given: Case) -> Case:
    """As models run; what kernels keep in double precision is another matter."""
    if not all(t.dtype in (torch.float64, torch.int64, torch.bool) for t in given.operands):
        return given
    narrow = [
        t.detach().float().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in given.operands
    ]
    return case_of(given.op, narrow)


LOWERED = {
    "vocabulary-parallel embedding": lambda: case("aten.embedding.default", floats(6, 4), torch.randint(0, 6, (4, 2))),
    "cross-entropy": lambda: case("aten.cross_entropy_loss.default", floats(6, 4), torch.randint(0, 4, (6,))),
    "summed cross-entropy": lambda: case(
        "aten.cross_entropy_loss.default", floats(6, 4), torch.randint(0, 4, (6,)), None, 2
    ),
    "batch norm": lambda: case(
        "meshwright.capture.functional:batch_norm",
        *(floats(6, 4, 3, 3), floats(4), floats(4), torch.rand(4), torch.rand(4), 0.1, 1e-5),
    ),
    "attention": lambda: case(SDPA, floats(2, 4, 6, 8), floats(2, 2, 6, 8), floats(2, 2, 6, 8), **GROUPED),
    "masked attention": lambda: case(SDPA, *(floats(2, 4, 6, 8) for _ in range(3)), torch.rand(6, 6) > -1),
    "biased attention": lambda: case(SDPA, *(floats(2, 4, 6, 8) for _ in range(3)), torch.rand(6, 6)),
    "layer norm": lambda: case("aten.layer_norm.default", floats(6, 4), (4,), floats(4), floats(4)),
    "rms norm": lambda: case("aten.rms_norm.default", floats(6, 4), (4,), floats(4), 1e-5),
    "log softmax": lambda: case("aten.log_softmax.int", floats(6, 4), 1),
    "mean": lambda: case("aten.mean.dim", floats(6, 4), (1,)),
    "l1_loss": lambda: case("aten.l1_loss.default", floats(6, 4), floats(6, 4)),
    "weighted cross-entropy": lambda: case(
        "aten.cross_entropy_loss.default", floats(6, 4), torch.randint(0, 4, (6,)), torch.rand(4)
    ),
    "linear": lambda: case("aten.linear.default", floats(6, 4), floats(2, 4), floats(2)),
}


@pytest.mark.parametrize("name", LOWERED)
def test_every_lowering_keeps_what_it_says_on_each_rank(name: str) -> None:
    given, mesh = LOWERED[name](), logical_mesh({"x": 2})
    for strategy in strategies(given.op, given.values(), mesh):
        check_on_ranks(given, strategy, mesh)


def check_on_ranks(given: Case, strategy: Strategy, mesh: Mesh) -> None:
    whole = zip(given.operands, strategy.operands, strict=True)
    pieces = [distribute(tensor.detach(), layout, mesh) for tensor, layout in whole]
    local = list(local_operands(strategy, given.op, given.values(), mesh))

    def rank(index: int) -> None:
        operands = [p[index].clone().requires_grad_(v.grad) for p, v in zip(pieces, local, strict=True)]
        check(strategy.lowering, operands, local, str(strategy))

    simulate({"x": 2}, rank)
