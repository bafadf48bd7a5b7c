"""Conversions on real gloo processes: there and back, gradients, and agreement with DTensor; 2, 3, 4 and 6 ranks."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from layout_pieces import cut
from layout_ranks import Sizes, rank_of_mesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from meshwright.cluster import logical_mesh
from meshwright.errors import LayoutError
from meshwright.layout import Layout, all_layouts, conversion
from meshwright.layout import collectives as ops
from meshwright.layout.convert import convert
from meshwright.layout.record import record
from meshwright.layout.transport import ProcessTransport, use_transport

if TYPE_CHECKING:
    from processes import GlooPool


def some_pairs(n_dims: int, n_axes: int, count: int) -> list[tuple[Layout, Layout]]:
    pairs = list(product(all_layouts(n_dims, n_axes), repeat=2))
    return pairs if count >= len(pairs) else random.Random(0).sample(pairs, count)


def there_and_back(rank: int, sizes: Sizes, shape: tuple[int, ...], count: int) -> int:
    pairs = some_pairs(len(shape), len(sizes), count)
    with rank_of_mesh(rank, sizes, shape) as here:
        for source, target in pairs if here else ():
            x = here.addend(here.full, source, "P").requires_grad_()
            with record() as log:
                y = convert(x, source, target, here.mesh, shape=shape)
            if rank == 0:
                assert tuple(log) == conversion(source, target, shape, 8, here.mesh).forward
            here.assert_holds(y.detach(), here.full, target, "P")
            here.assert_holds(convert(y.detach(), target, source, here.mesh, shape=shape), here.full, source, "P")
            if y is not x:
                (g,) = torch.autograd.grad(y, x, here.addend(here.gradient, target, "R"))
                here.assert_holds(g, here.gradient, source, "R")
    return len(pairs)


QUICK: list[tuple[Sizes, tuple[int, ...]]] = [
    ({"a": 2}, (5, 3)),
    ({"a": 2, "b": 2}, (8, 4)),
    ({"a": 2, "b": 3}, (7, 5)),
]
MORE: list[tuple[Sizes, tuple[int, ...]]] = [
    ({"a": 2}, (4, 6)),
    ({"a": 3}, (7, 2)),
    ({"a": 2, "b": 2}, (5, 7)),
    ({"a": 2, "b": 3}, (12, 6)),
    ({"a": 6}, (4, 8)),
]


@pytest.mark.parametrize(
    ("sizes", "shape"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.full) for case in MORE)], ids=str
)
def test_there_and_back_is_the_identity_and_gradients_are_right(
    gloo: GlooPool, sizes: Sizes, shape: tuple[int, ...]
) -> None:
    assert gloo.run(there_and_back, sizes, shape, 60)[0] > 0


@pytest.mark.full
@pytest.mark.parametrize(("sizes", "shape"), [*QUICK, *MORE], ids=str)
def test_every_pair_there_and_back(gloo: GlooPool, sizes: Sizes, shape: tuple[int, ...]) -> None:
    done = gloo.run(there_and_back, sizes, shape, 1 << 30, timeout_s=1800)[0]
    assert done == len(all_layouts(len(shape), len(sizes))) ** 2


def agree_with_dtensor(rank: int) -> int:
    device_mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("a", "b"))
    mesh = logical_mesh({"a": 2, "b": 3})
    full = torch.arange(7 * 11, dtype=torch.float32).reshape(7, 11)
    compared = 0
    with use_transport(ProcessTransport.from_mesh(device_mesh)):
        for layout in all_layouts(2, 2):
            if "P" in str(layout):
                continue
            theirs = distribute_tensor(full, device_mesh, layout.placements())
            ours = cut(full, layout, mesh, mesh.coordinates(rank))
            assert torch.equal(theirs.to_local(), ours), layout
            assert layout.local_shape((7, 11), mesh.sizes, mesh.coordinates(rank)) == theirs.to_local().shape
            gathered = convert(ours, layout, Layout.parse("[R, R]"), mesh, shape=(7, 11))
            again = DTensor.from_local(
                ours, device_mesh, layout.placements(), run_check=False, shape=full.shape, stride=full.stride()
            )
            assert torch.equal(gathered, again.full_tensor()), layout
            compared += 1
    return compared


def test_pieces_are_those_of_dtensor_uneven_and_nested(gloo: GlooPool) -> None:
    assert gloo.run(agree_with_dtensor) == [16] * 6


def bfloat16_sums(rank: int) -> list[float]:
    transport = ProcessTransport.from_ranks(torch.arange(6), ["a"])
    with use_transport(transport):
        x = torch.full((6,), rank + 1.0, dtype=torch.bfloat16)
        scattered = ops.reduce_scatter(x, 0, "a", 6)
        return [scattered.item(), ops.all_reduce_max(x, "a")[0].item(), float(dist.get_rank())]


def test_bfloat16_reduces_on_gloo(gloo: GlooPool) -> None:
    assert gloo.run(bfloat16_sums) == [[21.0, 6.0, float(rank)] for rank in range(6)]


def refusals(rank: int) -> list[str]:
    """What uneven pieces without `shape=`, and meshes of another size than the group, are told on real processes."""
    transport, told = ProcessTransport.from_ranks(torch.arange(6), ["a"]), []
    rows = torch.arange(22.0).reshape(11, 2).chunk(6)[rank].contiguous()
    tries = [
        (rows, "[S(0)]", "[I]", 6),
        (rows, "[S(0)]", "[S(1)]", 6),
        (torch.ones(4, 4), "[P]", "[I]", 4),
        (torch.ones(4, 4), "[P]", "[S(0)]", 2),
        (torch.ones(2, 4), "[S(0)]", "[S(1)]", 2),
        (torch.ones(4, 4), "[I]", "[S(0)]", 2),
    ]
    with use_transport(transport):
        for x, source, target, size in tries:
            with pytest.raises(LayoutError) as refused:
                convert(x, Layout.parse(source), Layout.parse(target), {"a": size})
            told.append(refused.value.given)
        # And the group still works.
        assert torch.equal(
            convert(rows, Layout.parse("[S(0)]"), Layout.parse("[I]"), {"a": 6}, shape=(11, 2))[-1:], LAST
        )
    return told


LAST = torch.tensor([[20.0, 21.0]])


def test_real_ranks_refuse_what_they_disagree_about(gloo: GlooPool) -> None:
    for told in gloo.run(refusals):
        assert told[:2] == ["pieces of a value in [S(0)] have lengths from [1, 2] to [2, 2]"] * 2
        assert [text.split(",")[0] for text in told[2:]] == [f"mesh axis 'a' of size {n}" for n in (4, 2, 2, 2)]
