"""The raw ops: what they compute on simulated ranks, their fakes, the recorder, and failures that do not hang."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from meshwright.errors import LayoutError
from meshwright.layout import Collective
from meshwright.layout import collectives as ops
from meshwright.layout.record import record
from meshwright.layout.threads import simulate

SIZES = {"dp": 2, "tp": 3}


def tensor_of(rank: int) -> Tensor:
    return torch.arange(12, dtype=torch.float32).reshape(2, 6) + 100 * rank


def test_each_op_does_what_its_name_says() -> None:
    def run(rank: int) -> dict[str, Tensor]:
        x = tensor_of(rank)
        return {
            "all_reduce": ops.all_reduce(x, "tp"),
            "all_reduce_max": ops.all_reduce_max(x, "tp"),
            "all_gather": ops.all_gather(x, 1, "tp", 3),
            "reduce_scatter": ops.reduce_scatter(x, 1, "tp", 3),
            "all_to_all": ops.all_to_all(x, 1, 0, "tp", 3),
            "take_slice": ops.take_slice(x, 1, "tp", 3),
            "place_slice": ops.place_slice(x, 0, "tp", 3),
            "keep_on_first": ops.keep_on_first(x, "tp"),
            "axis_index": ops.axis_index("tp"),
            "flat": ops.all_gather(x, 0, "dp*tp", 6),
        }

    results = simulate(SIZES, run)
    for rank, got in enumerate(results):
        group = [tensor_of(r) for r in range(rank // 3 * 3, rank // 3 * 3 + 3)]
        at = rank % 3
        zeros = torch.zeros(2, 6)
        expected = {
            "all_reduce": sum(group),
            "all_reduce_max": group[2],
            "all_gather": torch.cat(group, 1),
            "reduce_scatter": sum(group)[:, 2 * at : 2 * at + 2],  # type: ignore[index]
            "all_to_all": torch.cat([x[:, 2 * at : 2 * at + 2] for x in group], 0),
            "take_slice": tensor_of(rank)[:, 2 * at : 2 * at + 2],
            "place_slice": torch.cat([tensor_of(rank) if i == at else zeros for i in range(3)], 0),
            "keep_on_first": tensor_of(rank) if at == 0 else zeros,
            "axis_index": torch.tensor(at),
            "flat": torch.cat([tensor_of(r) for r in range(6)], 0),
        }
        for name, value in expected.items():
            assert torch.equal(got[name], value), (rank, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (ops.all_reduce, ("tp",)),
        (ops.all_gather, (1, "tp", 3)),
        (ops.reduce_scatter, (1, "tp", 3)),
        (ops.all_to_all, (1, 0, "tp", 3)),
        (ops.take_slice, (1, "tp", 3)),
        (ops.place_slice, (1, "tp", 3)),
        (ops.keep_on_first, ("tp",)),
    ],
    ids=lambda value: getattr(value, "_name", ""),
)
def test_fakes_agree_with_the_ops(op: torch.library.CustomOpDef, arguments: tuple[object, ...]) -> None:
    def check(rank: int) -> None:
        x = tensor_of(rank).t()[:, :].t()
        real = op(x, *arguments)
        fake = op(x.to("meta"), *arguments)
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())
        assert real.data_ptr() != x.data_ptr()

    simulate(SIZES, check)


def test_the_recorder_counts_bytes_by_convention_and_only_what_communicates() -> None:
    def run(rank: int) -> list[Collective]:
        x = tensor_of(rank)
        with record() as log:
            ops.all_reduce(x, "dp")
            ops.all_gather(x, 0, "tp", 3)
            ops.reduce_scatter(x, 1, "tp", 3)
            ops.all_to_all(x, 1, 0, "tp", 3)
            ops.take_slice(x, 1, "tp", 3)
            ops.keep_on_first(x, "tp")
        ops.all_reduce(x, "dp")
        return log

    expected = [
        Collective("all_reduce", "dp", 48),
        Collective("all_gather", "tp", 144),
        Collective("reduce_scatter", "tp", 48),
        Collective("all_to_all", "tp", 48),
    ]
    assert simulate(SIZES, run) == [expected] * 6


class DoublingReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return ops.all_reduce(gradients[0], "tp")


def test_collectives_run_inside_backward_of_simulated_ranks() -> None:
    def run(rank: int) -> Tensor:
        x = torch.ones(2, requires_grad=True)
        (DoublingReduce.apply(x) * (rank + 1)).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad

    assert [g[0].item() for g in simulate(SIZES, run)] == [6.0, 6.0, 6.0, 15.0, 15.0, 15.0]


def test_the_first_failure_is_raised_and_nobody_hangs() -> None:
    before = threading.active_count()

    def run(rank: int) -> None:
        if rank == 4:
            raise ValueError("rank 4 fails")
        ops.all_reduce(torch.ones(1), "dp*tp")

    with pytest.raises(ValueError, match="rank 4 fails"):
        simulate(SIZES, run)
    assert threading.active_count() == before


def test_ranks_that_disagree_are_told_so() -> None:
    def run(rank: int) -> None:
        (ops.all_reduce if rank else ops.all_reduce_max)(torch.ones(1), "tp")

    with pytest.raises(LayoutError, match="disagree"):
        simulate({"tp": 2}, run)


def test_a_collective_without_transport_says_what_to_do() -> None:
    with pytest.raises(LayoutError, match="use_transport"):
        ops.all_reduce(torch.ones(1), "tp")


def test_an_unknown_axis_or_a_wrong_size_is_named() -> None:
    with pytest.raises(LayoutError, match="'pp'"):
        simulate({"tp": 2}, lambda rank: ops.all_reduce(torch.ones(1), "pp"))
    with pytest.raises(LayoutError, match="of size 3, whose group has 2 ranks"):
        simulate({"tp": 2}, lambda rank: ops.all_gather(torch.ones(1), 0, "tp", 3))
