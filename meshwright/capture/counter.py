"""Random numbers by counter: a function of seed, step, op and global element index, whatever the layout.

A step has one *key* per random op (`keys`, made in the prologue from the seed and the step in force). An element's
32 random bits are a hash of the key and the element's place in the whole tensor, as two whole numbers: its row (dims
up to a point that the whole shape decides) and its column (the rest). A rank that holds a piece passes the place of
its first element (`start`) and the whole shape. Nothing is drawn, so backward makes the same bits again and keeps
no mask.

The hash: three rounds of multiply and xor-shift (the constants are those of a published search for low bias),
rows entering after the first. `bits` is plain torch ops, which Inductor fuses; on a CPU, eager, blocks of a cache's
size are worked on in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshwright.torch_compat import fuse_when_compiled

BLOCK = 1 << 15
_FIRST, _SECOND, _THIRD = 0xED5AD4BB - (1 << 32), 0xAC4C1B51 - (1 << 32), 0x31848BAB
_WORD = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RandomState:
    """What a step's keys are made from. `first_row` of `rows`: a micro-batch's place in the global batch."""

    seed: int = 0
    step: int = 0
    first_row: int = 0
    rows: int = 1
    dropout: bool = True


class _InForce:
    state = RandomState()


@contextmanager
def random_state(state: RandomState) -> Iterator[None]:
    """The state that `keys` reads, for the whole process. Only a prologue reads it: segments are handed keys."""
    before, _InForce.state = _InForce.state, state
    try:
        yield
    finally:
        _InForce.state = before


def keys(count: int, device: torch.device) -> tuple[Tensor, ...]:
    """One key per random op of the program, for the step in force."""
    state = _InForce.state
    rest = [state.first_row, state.rows, int(state.dropout)]
    found = [[*_words(state.seed, state.step, op), *rest] for op in range(count)]
    # The host does not wait for the device to take them.
    return torch.tensor(found, dtype=torch.int64).to(device, non_blocking=True).unbind(0)


def _words(seed: int, step: int, op: int) -> tuple[int, int]:
    """Two signed words from three numbers: each is mixed in by a 64-bit finalizer."""
    mixed = 0
    for number in (seed, step, op):
        mixed = _mixed_64((mixed + number + 0x9E3779B97F4A7C15) & ((1 << 64) - 1))
    return _signed(mixed & 0xFFFFFFFF), _signed(mixed >> 32)


def _mixed_64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ((1 << 64) - 1)
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def leading_dims(shape: Sequence[int]) -> int:
    """How many dims make up the row: at least the first, and as many as leave columns that a word can count."""
    lead = min(1, len(shape))
    while lead < len(shape) and prod(shape[lead:]) > _WORD:
        lead += 1
    return lead


def bits(key: Tensor, sizes: Sequence[int], start: Tensor | None, shape: Sequence[int]) -> Tensor:
    """32 random bits per element, as signed words: a piece of `sizes` of a tensor of `shape`.

    `start`: for each dim the place of the piece's first element.
    """
    columns, rows = columns_and_rows(key, sizes, start, shape)
    return _finish(columns + rows)


def columns_and_rows(
    key: Tensor, sizes: Sequence[int], start: Tensor | None, shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The hashed columns and rows of a piece, each with as many dims as the piece; their sums are finished."""
    lead, words = leading_dims(shape), key.to(torch.int32)
    row, column = (
        _place(key, sizes, start, shape, range(lead)),
        _place(key, sizes, start, shape, range(lead, len(sizes))),
    )
    before = (key[2] * prod(shape[:lead])).div(key[3], rounding_mode="floor").to(torch.int32)
    columns = _round(column ^ words[0], 17, _FIRST, 11)
    rows = _round(_round((row + before) ^ words[1], 16, _SECOND, 15), 1, _THIRD, 16)
    return columns, rows


def _place(key: Tensor, sizes: Sequence[int], start: Tensor | None, shape: Sequence[int], dims: range) -> Tensor:
    """The linear place of every element within some of the dims, in words; other dims have size one."""
    found = torch.zeros((1,) * len(sizes), dtype=torch.int32, device=key.device)
    for dim in dims:
        stride = prod(shape[dim + 1 : dims.stop])
        along = torch.arange(sizes[dim], dtype=torch.int32, device=key.device)
        if start is not None:
            along = along + start[dim].to(device=key.device, dtype=torch.int32)
        found = found + (along * stride).view([-1 if i == dim else 1 for i in range(len(sizes))])
    return found


def _round(x: Tensor, before: int, factor: int, after: int) -> Tensor:
    x = (x ^ _shifted(x, before)) * factor
    return x ^ _shifted(x, after)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A shift that brings in zeros: torch's brings in the sign."""
    return (x >> by) & ((1 << (32 - by)) - 1)


def _finish(x: Tensor) -> Tensor:
    x = x * _SECOND
    x = (x ^ _shifted(x, 15)) * _THIRD
    return x ^ _shifted(x, 14)


def _finish_in_place(x: Tensor, room: Tensor) -> None:
    for factor, by in ((_SECOND, 15), (_THIRD, 14)):
        x.mul_(factor)
        torch.bitwise_right_shift(x, by, out=room)
        x.bitwise_xor_(room.bitwise_and_((1 << (32 - by)) - 1))


def _blocks(columns: Tensor, rows: Tensor, length: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """A piece's bits in blocks that stay in a cache: (rows, columns, bits); the bits are overwritten by the next."""
    count = columns.numel()
    tall, wide = max(1, BLOCK // max(count, 1)), min(count, BLOCK)
    room = torch.empty(2, tall * wide, dtype=torch.int32)
    for top in range(0, length, tall):
        for left in range(0, count, wide):
            down, across = slice(top, min(top + tall, length)), slice(left, min(left + wide, count))
            size = (down.stop - top) * (across.stop - left)
            x = room[0, :size].view(down.stop - top, -1)
            torch.add(columns[None, across], rows[down, None], out=x)
            _finish_in_place(x, room[1, :size].view_as(x))
            yield down, across, x


def _flat_blocks(key: Tensor, sizes: Sequence[int], start: Tensor | None, shape: Sequence[int]) -> Any:
    columns, rows = columns_and_rows(key, sizes, start, shape)
    lead = leading_dims(shape)
    whole_rows = rows.expand((*sizes[:lead], *((1,) * (len(sizes) - lead)))).reshape(-1)
    whole_columns = columns.expand((*((1,) * lead), *sizes[lead:])).reshape(-1)
    return _blocks(whole_columns, whole_rows, whole_rows.numel())


def _threshold(p: float) -> int:
    """Bits from here on keep an element: of all 2**32 words, a share of 1 - p."""
    return min(round(p * (1 << 32)), (1 << 32) - 1) - (1 << 31)


def _scale(p: float) -> float:
    return 0.0 if p >= 1 else 1 / (1 - p)


def plain_dropout(x: Tensor, key: Tensor, p: float, start: Tensor | None = None, shape: Any = None) -> Tensor:
    """`dropout` in ops that a compiler fuses."""
    on = key[4] != 0
    drawn = bits(key, x.shape, start, shape or x.shape)
    keep = drawn >= torch.where(on, _threshold(p), -(1 << 31)).to(torch.int32)
    return torch.where(keep, x * torch.where(on, _scale(p), 1.0).to(x.dtype), 0.0)


@torch.library.custom_op("meshwright::dropout", mutates_args=())
def dropout(
    x: Tensor, key: Tensor, p: float, start: Tensor | None = None, shape: Sequence[int] | None = None
) -> Tensor:
    """Elements with probability `p` become zero, the others grow by 1 / (1 - p); all stay where dropout is off.

    `start` and `shape`: the place of this piece in the whole, and the whole's shape, where `x` is not the whole.
    """
    if x.device.type != "cpu" or not x.numel():
        return plain_dropout(x, key, p, start, shape).contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not int(key[4]):
        return out.copy_(x)
    whole = shape or x.shape
    source, made = x.contiguous(), out
    lead = leading_dims(whole)
    folded = (prod(x.shape[:lead]), prod(x.shape[lead:]))
    source, made, threshold = source.view(folded), made.view(folded), _threshold(p)
    for down, across, drawn in _flat_blocks(key, x.shape, start, whole):
        torch.mul(source[down, across], drawn >= threshold, out=made[down, across])
    return out.mul_(_scale(p))


def plain_uniform(
    key: Tensor, sizes: Sequence[int], dtype: torch.dtype, start: Tensor | None = None, shape: Any = None
) -> Tensor:
    """Multiples of 2**-24 from 0 up to, not including, 1."""
    drawn = _shifted(bits(key, sizes, start, shape or sizes), 8)
    return drawn.expand(list(sizes)).to(torch.promote_types(dtype, torch.float32)).mul(2.0**-24).to(dtype)


def plain_normal(
    key: Tensor, sizes: Sequence[int], dtype: torch.dtype, start: Tensor | None = None, shape: Any = None
) -> Tensor:
    """A standard normal distribution, from two uniform numbers each."""
    other = torch.cat([key[:2].flip(0), key[2:]])
    wide = torch.promote_types(dtype, torch.float32)
    radius = (-2 * torch.log1p(-plain_uniform(key, sizes, wide, start, shape))).sqrt()
    angle = plain_uniform(other, sizes, wide, start, shape) * (2 * torch.pi)
    return (radius * angle.cos()).to(dtype)


def _operator(name: str, plain: Callable[..., Tensor]) -> Any:
    """One of the functions above as an operator; `start` and `shape` as for `dropout`."""

    def draw(
        key: Tensor,
        sizes: Sequence[int],
        dtype: torch.dtype,
        start: Tensor | None = None,
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        return plain(key, sizes, dtype, start, shape).contiguous()

    def blank(key: Tensor, sizes: Sequence[int], dtype: torch.dtype, start: Any = None, shape: Any = None) -> Tensor:
        return torch.empty(tuple(sizes), dtype=dtype, device=key.device)

    made = torch.library.custom_op(f"meshwright::{name}", draw, mutates_args=())
    made.register_fake(blank)
    return made


uniform = _operator("uniform", plain_uniform)
normal = _operator("normal", plain_normal)


@dropout.register_fake
def _(x: Tensor, key: Tensor, p: float, start: Tensor | None = None, shape: Any = None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_place(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, key, ctx.p, start, ctx.shape = inputs
    ctx.save_for_backward(key, start)


def _again(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
    key, start = ctx.saved_tensors
    return dropout(gradient, key, ctx.p, start, ctx.shape), None, None, None, None


dropout.register_autograd(_again, setup_context=_keep_place)

DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.meshwright.dropout.default: plain_dropout,
    torch.ops.meshwright.uniform.default: plain_uniform,
    torch.ops.meshwright.normal.default: plain_normal,
}
"""For compilers: each op in ops that they know and fuse."""
fuse_when_compiled(DECOMPOSITIONS)
