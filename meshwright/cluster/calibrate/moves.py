"""The ops that tapes are made of (`tape`): each takes a value of [4, 64, 128] and ends with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.cluster.calibrate.samples import dispatched

ROWS, IMAGE, HEADS = (4, 64, 128), (2, 64, 16, 16), (4, 64, 2, 64)
_FLAT = (256, 128)
EXPERTS = (4, 16)
"""Groups of a grouped product: where there is no kernel for all, the host asks for each."""
PICKS = 8192
"""Of tokens, so many that sorting them takes more kernels."""
ATTENTIONS = ("plain", "mask", "bias", "strided", "grouped")


@dataclass(frozen=True)
class Move:
    """name: of the host's figure. leaves: parameters of its own. grad: whether backward goes through it."""

    name: str
    run: Callable[[Any], Any]
    leaves: tuple[Tensor, ...] = ()
    grad: bool = True


def last_of(state: Any) -> Tensor:
    """Of what a move gives, what the next one's backward comes to first."""
    found = state[-1] if isinstance(state, tuple | list) else state
    assert isinstance(found, Tensor)
    return found


class _Plain(nn.Module):
    """What a module's call costs, reading two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() if self.weight is self.bias else x


def moves(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    """Fresh parameters each time. What the device cannot run is left out."""
    x = torch.randn(ROWS, device=device).to(dtype).requires_grad_()
    for make in (_elementwise, _rows, _views, _products, _lookups, _attentions, _images, _idle):
        for part in make(device, dtype):
            try:
                state: Any = x
                for move in part:
                    state = move.run(state)
                last_of(state).mean().backward()  # type: ignore[no-untyped-call]
            except (RuntimeError, NotImplementedError):
                continue
            yield part


def _leaf(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


def _with(name: str, function: Callable[..., Any], *leaves: Tensor) -> Move:
    return Move(name, lambda x: function(x, *leaves), leaves)


def _view(*shape: int) -> Move:
    return Move("view", lambda x: x.view(shape))


def _elementwise(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    fixed, table = (torch.randn(shape, device=device).to(dtype) for shape in (ROWS, ROWS[1:]))
    leaf = partial(_leaf, device, dtype)
    other = torch.float32 if dtype != torch.float32 else torch.bfloat16
    yield [Move("gelu", F.gelu)]
    yield [Move("silu", F.silu)]
    yield [Move("relu", F.relu)]
    yield [Move("dropout", lambda x: F.dropout(x, 0.1))]
    yield [Move("scaled", lambda x: x * 0.5)]
    yield [Move("multiply", lambda x: x * fixed)]
    yield [Move("broadcast", lambda x: x * table)]
    yield [_with("binary", torch.mul, leaf(*ROWS))]
    yield [_with("added", torch.add, leaf(*ROWS))]
    yield [_with("reduced", torch.add, leaf(ROWS[-1]))]
    yield [Move("cast", lambda x: x.to(other)), Move("cast", lambda x: x.to(dtype))]
    yield [Move("view_and_sum", lambda x: (x, x.view(ROWS))), Move("added", lambda pair: pair[0] + pair[1])]


def _rows(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    leaf, width = partial(_leaf, device, dtype), ROWS[-1]
    fixed = torch.randn(ROWS, device=device).to(dtype)
    wide = [Move("expand", lambda x: x.expand(ROWS)), Move("multiply", lambda x: x * fixed)]
    yield [_with("layer_norm", lambda x, w, b: F.layer_norm(x, (width,), w, b), leaf(width), leaf(width))]
    yield [_with("rms_norm", lambda x, w: F.rms_norm(x, (width,), w), leaf(width))]
    yield [Move("softmax", lambda x: x.softmax(-1))]
    yield [Move("mean", lambda x: x.mean(1, keepdim=True)), *wide]
    yield [Move("column_sum", lambda x: x.sum(1, keepdim=True)), *wide]
    yield [_view(4096, 8), Move("topk", lambda x: x.topk(8, dim=-1)[0]), _view(*ROWS)]
    targets = torch.randint(0, width, _FLAT[:1], device=device)
    yield [_view(*_FLAT), Move("cross_entropy", lambda x: F.cross_entropy(x, targets)), *wide]
    yield [Move("squared_error", lambda x: F.mse_loss(x, fixed)), *wide]


def _views(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    turn = Move("transpose", lambda x: x.transpose(1, 2))
    yield [_view(4, 64, 4, 32), _view(*ROWS)]
    yield [turn, turn]
    yield [turn, Move("reshaped", lambda x: x.reshape(4, 64, 128))]
    yield [Move("chunk", lambda x: x.chunk(2, dim=-1)), Move("cat", lambda halves: torch.cat(halves[::-1], dim=-1))]
    yield [Move("slice", lambda x: x[:, 1:]), Move("pad", lambda x: F.pad(x, (0, 0, 1, 0)))]
    plain = _Plain()
    yield [Move("module", plain, grad=False)]


def _products(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    leaf = partial(_leaf, device, dtype)
    yield [_with("linear", F.linear, leaf(128, 128), leaf(128))]
    yield [_with("linear_plain", F.linear, leaf(128, 128))]
    yield [_view(*_FLAT), _with("linear_flat", F.linear, leaf(128, 128), leaf(128)), _view(*ROWS)]
    yield [_view(*_FLAT), _with("matmul", torch.matmul, leaf(128, 128)), _view(*ROWS)]
    yield [_view(8, 64, 64), _with("bmm", torch.matmul, leaf(8, 64, 64)), _view(*ROWS)]
    for groups in EXPERTS:
        weights = leaf(groups, 128, 128)
        # As picks fall: no two groups of one size, for which the host would find the same kernel again.
        cuts = torch.randperm(_FLAT[0] - 1, device=device)[: groups - 1].sort()[0] + 1
        ends = torch.cat([cuts, cuts.new_tensor([_FLAT[0]])]).to(torch.int32)
        product = _with(f"grouped_mm_{groups}", partial(_grouped, ends), weights)
        yield [_view(*_FLAT), product, _view(*ROWS)]


def _grouped(ends: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    return F.grouped_mm(x, weights, offs=ends)


def _lookups(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    leaf = partial(_leaf, device, dtype)
    indices = torch.randint(0, 512, ROWS[:2], device=device)
    table = leaf(512, ROWS[-1])
    yield [
        Move("embedding", lambda x: (x, F.embedding(indices, table)), (table,)),
        Move("added", lambda pair: pair[0] + pair[1]),
    ]
    order = torch.randperm(_FLAT[0], device=device)
    yield [_view(*_FLAT), Move("gather", lambda x: x[order]), _view(*ROWS)]
    chosen, weights = torch.randint(0, 8, (_FLAT[0], 2), device=device), leaf(_FLAT[0], 2)
    yield [_view(*_FLAT), Move("dispatch", partial(dispatched, chosen, weights), (weights,)), _view(*ROWS)]
    chosen, weights = torch.randint(0, 8, (PICKS // 2, 2), device=device), leaf(PICKS // 2, 2)
    many = Move("dispatch_many", partial(dispatched, chosen, weights), (weights,))
    yield [_view(PICKS // 2, -1), many, _view(*ROWS)]


def _attentions(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    for variant in ATTENTIONS:
        heads = 1 if variant == "grouped" else HEADS[2]
        key, value = (
            torch.randn(4, 64, heads, 64, device=device).to(dtype).transpose(1, 2).requires_grad_() for _ in range(2)
        )
        mask = None
        if variant in ("mask", "bias"):
            mask = torch.randn(1, 2, 64, 64, device=device).to(dtype).requires_grad_(variant == "bias")
        elif variant == "strided":
            mask = torch.randn(1, 64, 64, 2, device=device).to(dtype).permute(0, 3, 1, 2).requires_grad_()
        leaves = (key, value, *([mask] if mask is not None and mask.requires_grad else []))
        attend = Move(
            "attention" if variant == "plain" else f"attention_{variant}", partial(_attend, key, value, mask), leaves
        )
        turn = Move("transpose", lambda x: x.transpose(1, 2))
        with torch.no_grad():
            lies = attend.run(torch.randn(HEADS, device=device).to(dtype).transpose(1, 2)).transpose(1, 2)
        merged = Move("view" if lies.is_contiguous() else "reshaped", lambda x: x.reshape(ROWS))
        yield [_view(*HEADS), turn, attend, turn, merged]


def _attend(key: Tensor, value: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
    grouped = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=grouped, enable_gqa=grouped)


def _images(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    leaf, channels = partial(_leaf, device, dtype), IMAGE[1]
    mean, variance = torch.zeros(channels, device=device, dtype=dtype), torch.ones(channels, device=device, dtype=dtype)
    window, point = leaf(channels, channels, 3, 3), leaf(channels, channels, 1, 1)
    found = (
        _with("convolution", lambda x, w: F.conv2d(x, w, None, 1, 1), window),
        _with("convolution_bias", lambda x, w, b: F.conv2d(x, w, b, 1, 1), leaf(*window.shape), leaf(channels)),
        _with("convolution_1x1", lambda x, w: F.conv2d(x, w), point),
        _with(
            "convolution_turned",
            lambda x, w, b: F.conv_transpose2d(x, w, b, 1, 1),
            leaf(*window.shape),
            leaf(channels),
        ),
        _with("depthwise", lambda x, w: F.conv2d(x, w, None, 1, 1, 1, channels), leaf(channels, 1, 3, 3)),
        _with(
            "batch_norm",
            lambda x, w, b: F.batch_norm(x, mean, variance, w, b, training=True),
            leaf(channels),
            leaf(channels),
        ),
        _with("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), leaf(channels), leaf(channels)),
        Move("max_pool", lambda x: F.max_pool2d(x, 3, 1, 1)),
        Move("avg_pool", lambda x: F.avg_pool2d(x, 3, 1, 1)),
    )
    for move in found:
        yield [_view(*IMAGE), move, _view(*ROWS)]


def _idle(device: torch.device, dtype: torch.dtype) -> Iterator[list[Move]]:
    """Ops outside of the chain, which have no gradient."""
    first, second = (torch.randn(ROWS, device=device).to(dtype) for _ in range(2))
    whole = torch.randint(0, 8, (512,), device=device)
    yield [Move("add", lambda x: (first + second, x)[1], grad=False)]
    yield [Move("fill", lambda x: (torch.zeros(ROWS, dtype=dtype, device=device), x)[1], grad=False)]
    yield [Move("sort", lambda x: (whole.argsort(), x)[1], grad=False)]
