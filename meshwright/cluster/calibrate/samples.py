"""What calibration runs: small samples of every kind of kernel, and ops whose cost on the host is measured.

A sample of size n has about n elements in its main tensor; `work` is in bytes, counted as pricing counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.cluster.device_profile import VOCABULARY

Call = Callable[[], Tensor]
Make = Callable[[int, torch.dtype, torch.device], "Sample"]

WIDTH = 1024


@dataclass(frozen=True)
class Sample:
    """work: bytes. wrt: tensors whose gradient backward is asked for; none where there is no backward."""

    work: int
    call: Call
    wrt: tuple[Tensor, ...] = ()


def _randn(device: torch.device, dtype: torch.dtype, *shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape, device=device).to(dtype).requires_grad_(grad)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _on_rows(function: Callable[[Tensor], Tensor], share: int = 1) -> Make:
    """A function of rows of WIDTH elements; work: `share` times the rows' bytes."""

    def make(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
        x = _randn(device, dtype, max(1, n // WIDTH), min(n, WIDTH), grad=True)
        return Sample(share * _bytes(x), lambda: function(x), (x,))

    return make


def _add(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x, y = _randn(device, dtype, n), _randn(device, dtype, n)
    return Sample(3 * _bytes(x), lambda: x + y)


def _multiply(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x, y = _randn(device, dtype, n, grad=True), _randn(device, dtype, n)
    return Sample(3 * _bytes(x), lambda: x * y, (x,))


def _broadcast(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """Heads by a table of positions: the smaller factor is repeated."""
    rows = min(n, 1 << 14)
    x, y = _randn(device, dtype, max(1, n // rows), rows // 64, 64, grad=True), _randn(device, dtype, rows // 64, 64)
    return Sample(2 * _bytes(x) + _bytes(y), lambda: x * y, (x,))


def _cast(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x = _randn(device, dtype, n, grad=True)
    other = torch.float32 if dtype != torch.float32 else torch.bfloat16
    return Sample(_bytes(x) + n * other.itemsize, lambda: x.to(other), (x,))


def _turned(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """A copy into another order, as `transpose(1, 2).contiguous()` makes."""
    x = _randn(device, dtype, max(1, n >> 12), min(n, 64), 64 if n >= 1 << 12 else 1, grad=True)
    return Sample(2 * _bytes(x), lambda: x.transpose(1, 2).contiguous(), (x,))


def _bias(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """Added in place to the channels of images."""
    x, y = _image(n, dtype, device, grad=False), _randn(device, dtype, 1, 64, 1, 1)
    return Sample(2 * _bytes(x), lambda: x.add_(y, alpha=1e-3))


def _fill(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    return Sample(n * dtype.itemsize, lambda: torch.zeros(n, dtype=dtype, device=device))


def _cat(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x, y = (_randn(device, dtype, max(1, n // 64), min(n, 64), grad=True) for _ in range(2))
    return Sample(4 * _bytes(x), lambda: torch.cat([x, y], -1), (x, y))


def row_sample(kernel: str, units: int, width: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """Kernels that work through `units` rows (groups, channels, columns), each of `width` elements, side by side."""
    if kernel in ("group_norm", "batch_norm"):
        return _image_norm(kernel, units, width, dtype, device)
    if kernel == "column_sum":
        x = _randn(device, dtype, width, units, grad=True)
        return Sample(_bytes(x), lambda: x.sum(0), (x,))
    if kernel == "channel_sum":
        x = _randn(device, dtype, max(1, width // 256), units, min(width, 256), grad=True)
        return Sample(_bytes(x), lambda: x.sum((0, 2)), (x,))
    x = _randn(device, dtype, units, width, grad=True)
    weight, bias = (_randn(device, dtype, width, grad=True) for _ in range(2))
    if kernel == "layer_norm":
        return Sample(_bytes(x), lambda: F.layer_norm(x, (width,), weight, bias), (x, weight, bias))
    if kernel == "rms_norm":
        return Sample(_bytes(x), lambda: F.rms_norm(x, (width,), weight), (x, weight))
    if kernel == "softmax":
        return Sample(_bytes(x), lambda: x.softmax(-1), (x,))
    if kernel == "mean":
        return Sample(_bytes(x), lambda: x.mean(-1), (x,))
    targets = torch.randint(0, width, (units,), device=device)
    return Sample(_bytes(x), lambda: F.cross_entropy(x, targets), (x,))


def _image_norm(kernel: str, units: int, width: int, dtype: torch.dtype, device: torch.device) -> Sample:
    pixels = max(16, min(width // 16, 4096)) if width >= 64 else width
    side = (1, pixels)
    if kernel == "group_norm":
        groups = min(units, 8)
        shape, channels = (units // groups, groups * (width // pixels), *side), groups * (width // pixels)
    else:
        shape, channels = (width // pixels, units, *side), units
    x = _randn(device, dtype, *shape, grad=True)
    weight, bias = (_randn(device, dtype, channels, grad=True) for _ in range(2))
    if kernel == "group_norm":
        return Sample(_bytes(x), lambda: F.group_norm(x, groups, weight, bias), (x, weight, bias))
    mean, var = torch.zeros(channels, device=device, dtype=dtype), torch.ones(channels, device=device, dtype=dtype)
    return Sample(_bytes(x), lambda: F.batch_norm(x, mean, var, weight, bias, training=True), (x, weight, bias))


ROWS = (
    *("layer_norm", "rms_norm", "softmax", "cross_entropy", "group_norm", "batch_norm"),
    *("column_sum", "channel_sum", "mean"),
)


def _image(n: int, dtype: torch.dtype, device: torch.device, channels: int = 64, grad: bool = True) -> Tensor:
    side = 32 if n >= channels << 10 else 8
    return _randn(device, dtype, max(1, n // (channels * side * side)), channels, side, side, grad=grad)


def _on_image(function: Callable[[Tensor], Tensor]) -> Make:
    def make(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
        x = _image(n, dtype, device)
        return Sample(_bytes(x), lambda: function(x), (x,))

    return make


def _embedding(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """Work: bytes of the rows; the weight is small, since the filling of its gradient is counted apart."""
    weight = _randn(device, dtype, VOCABULARY, min(n, WIDTH), grad=True)
    indices = torch.randint(0, VOCABULARY, (max(1, n // WIDTH),), device=device)
    return Sample(
        indices.numel() * weight.shape[1] * weight.element_size(), lambda: F.embedding(indices, weight), (weight,)
    )


def _gather(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x = _randn(device, dtype, max(1, n // WIDTH), min(n, WIDTH), grad=True)
    indices = torch.randperm(x.shape[0], device=device)
    return Sample(2 * _bytes(x), lambda: x[indices], (x,))


def _dispatch(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """Tokens brought to two of eight experts each, weighed, and brought back; the experts do nothing. Work: bytes of
    the rows that experts see."""
    tokens = _randn(device, dtype, max(1, n // (2 * WIDTH)), min(n, WIDTH), grad=True)
    chosen = torch.randint(0, 8, (tokens.shape[0], 2), device=device)
    weights = _randn(device, dtype, tokens.shape[0], 2, grad=True)
    return Sample(2 * _bytes(tokens), lambda: dispatched(chosen, weights, tokens), (tokens, weights))


def dispatched(chosen: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
    order = chosen.flatten().argsort()
    counts = torch.histc(chosen.flatten().float(), bins=8, min=0, max=7)
    counts.cumsum(0).to(torch.int32)
    rows = tokens[order // chosen.shape[1]]
    rows = rows * weights.to(tokens.dtype).flatten()[order].unsqueeze(-1)
    found: Tensor = rows[order.argsort()].view(-1, chosen.shape[1], tokens.shape[-1]).sum(dim=1)
    return found


def _sort(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x = torch.randint(0, 8, (n,), device=device)
    return Sample(_bytes(x), lambda: x.argsort())


def _topk(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x = _randn(device, dtype, max(1, n // 8), 8, grad=True)
    return Sample(_bytes(x), lambda: x.topk(2, dim=-1)[0], (x,))


def _squared(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x, y = _randn(device, dtype, n, grad=True), _randn(device, dtype, n)
    return Sample(_bytes(x), lambda: F.mse_loss(x, y), (x,))


def _depthwise(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x = _image(n, dtype, device)
    weight = _randn(device, dtype, x.shape[1], 1, 3, 3, grad=True)
    return Sample(_bytes(x), lambda: F.conv2d(x, weight, None, 1, 1, 1, x.shape[1]), (x, weight))


def _depthwise_last(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    """Of images that lie channels last, by the window that models of such images have."""
    x = _image(n, dtype, device, channels=96).detach().to(memory_format=torch.channels_last).requires_grad_()
    weight = _randn(device, dtype, x.shape[1], 1, 7, 7, grad=True)
    return Sample(_bytes(x) * 49 // 9, lambda: F.conv2d(x, weight, None, 1, 3, 1, x.shape[1]), (x, weight))


KERNELS: dict[str, Make] = {
    "add": _add,
    "multiply": _multiply,
    "broadcast": _broadcast,
    "bias": _bias,
    "gelu": _on_rows(F.gelu, 2),
    "silu": _on_rows(F.silu, 2),
    "relu": _on_rows(F.relu, 2),
    "cast": _cast,
    "turned": _turned,
    "fill": _fill,
    "cat": _cat,
    "pad": _on_image(lambda x: F.pad(x, (0, 1, 0, 1))),
    "dropout": _on_rows(lambda x: F.dropout(x, 0.1)),
    "embedding": _embedding,
    "gather": _gather,
    "dispatch": _dispatch,
    "sort": _sort,
    "topk": _topk,
    "max_pool": _on_image(lambda x: F.max_pool2d(x, 3, 1, 1)),
    "avg_pool": _on_image(lambda x: F.avg_pool2d(x, 3, 1, 1)),
    "squared_error": _squared,
    "depthwise": _depthwise,
    "depthwise_last": _depthwise_last,
}
"""Kernels bound by memory. Work is bytes read and written for elementwise ones, else bytes of the main operand."""


SLOW = frozenset({"sort", "topk", "avg_pool", "max_pool", "depthwise", "depthwise_last"})
"""Kernels so slow that the largest size would take long, and tell nothing new."""
GPU_ONLY = frozenset({"depthwise_last"})
"""Kernels of images that lie channels last, which on a CPU none do."""

MORE = {"embedding": (3 << 20, 13 << 18)}
"""More sizes: up to 3072 rows a lookup's backward goes through them one by one, beyond it sorts them."""


def _small(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Make:
    """An op on tensors so small that its cost is the host's, yet such that the device's usual kernels serve it."""

    def make(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
        tensors = tuple(_randn(device, dtype, *shape, grad=True) for shape in shapes)
        return Sample(_bytes(*tensors), lambda: function(*tensors), tensors)

    return make


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _embed(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    weight = _randn(device, dtype, 1024, 64, grad=True)
    indices = torch.randint(0, 1024, (256,), device=device)
    return Sample(_bytes(weight), lambda: F.embedding(indices, weight), (weight,))


def _lose(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x, targets = _randn(device, dtype, 64, 256, grad=True), torch.randint(0, 256, (64,), device=device)
    return Sample(_bytes(x), lambda: F.cross_entropy(x, targets), (x,))


def _normed_image(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    return _image_norm("batch_norm", 32, 256, dtype, device)


def _group(n: int, dtype: torch.dtype, device: torch.device) -> Sample:
    x, weights = _randn(device, dtype, 256, 64, grad=True), _randn(device, dtype, 4, 64, 64, grad=True)
    ends = torch.arange(64, 257, 64, device=device, dtype=torch.int32)
    return Sample(_bytes(x), lambda: F.grouped_mm(x, weights, offs=ends), (x, weights))


_ROWS, _HEADS, _IMAGE = (4, 64, 128), (2, 64, 4, 64), (4, 32, 16, 16)

HOST: dict[str, Make] = {
    "linear": _small(F.linear, _ROWS, (128, 128), (128,)),
    "linear_plain": _small(F.linear, _ROWS, (128, 128)),
    "matmul": _small(torch.matmul, (128, 128), (128, 128)),
    "bmm": _small(torch.matmul, (2, 4, 64, 64), (2, 4, 64, 64)),
    "grouped_mm": _group,
    "attention": _small(_attend, _HEADS, _HEADS, _HEADS),
    "convolution": _small(lambda x, w: F.conv2d(x, w, None, 1, 1), _IMAGE, (32, 32, 3, 3)),
    "convolution_1x1": _small(lambda x, w: F.conv2d(x, w), _IMAGE, (32, 32, 1, 1)),
    "layer_norm": _small(lambda x, w, b: F.layer_norm(x, (128,), w, b), _ROWS, (128,), (128,)),
    "rms_norm": _small(lambda x, w: F.rms_norm(x, (128,), w), _ROWS, (128,)),
    "group_norm": _small(lambda x, w, b: F.group_norm(x, 8, w, b), _IMAGE, (32,), (32,)),
    "batch_norm": _normed_image,
    "softmax": _small(lambda x: x.softmax(-1), _ROWS),
    "cross_entropy": _lose,
    "embedding": _embed,
    "view": _small(lambda x: x.view(4, 64, 4, 32), _ROWS),
    "transpose": _small(lambda x: x.transpose(1, 2), _ROWS),
    "chunk": _small(lambda x: x.chunk(2, dim=-1)[0], _ROWS),
    "slice": _small(lambda x: x[:, :4], _ROWS),
    "expand": _small(lambda x: x.expand(4, 64, 128), (1, 64, 128)),
    "binary": _small(lambda x, y: x * y, _ROWS, _ROWS),
    "scaled": _small(lambda x: x * 2.0, _ROWS),
    "added": _small(lambda x, y: x + y, _ROWS, _ROWS),
    "reduced": _small(lambda x, y: x + y, _ROWS, (128,)),
    "column_sum": _small(lambda x: x.sum(1), _ROWS),
    "mean": _small(lambda x: x.mean(-1), _ROWS),
}
"""Beside the kernels above, which are asked for at a small size."""
