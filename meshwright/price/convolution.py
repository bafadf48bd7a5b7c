"""Convolution."""

from __future__ import annotations

from math import prod

from meshwright.price.case import Case, Seconds, Tensor


def convolution(case: Case) -> Seconds:
    """A turned one runs the gradient of the plain one forward, and the plain one backward."""
    x, weight = case.operands[:2]
    turned = "transpose" in case.name
    swept, wide = (x, case.results[0]) if turned else (case.results[0], x)
    groups = max(1, wide.shape[1] // weight.shape[1])
    out, channels, window = weight.shape[0] // groups, weight.shape[1], prod(weight.shape[2:])
    if window > 16:  # of windows this large, as of that many more channels
        channels, window = channels * window // 9, 9
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    image = prod(swept.shape[2:])
    reordered_s, odd = _reordered_s(case, wide, image, window, turned), image
    if reordered_s:
        odd = 0

    def side(name: str) -> float:
        pixels = prod(swept.shape) // swept.shape[1]
        return groups * on.convolution_s(name, dtype, itemsize, pixels, channels, out, window, odd) + reordered_s

    forward_s = side("input" if turned else "forward")
    backward_s = side("forward" if turned else "input") if x.grad else 0.0
    backward_s += side("weight") if weight.grad else 0.0
    if len(case.operands) > 2:
        bias_s = _convolution_bias(case)
        forward_s += bias_s[0]
        backward_s += bias_s[1]
    return forward_s, backward_s


def _reordered_s(case: Case, wide: Tensor, image: int, window: int, turned: bool) -> float:
    """Pixels beyond those swept (a stride skips them) are still brought into the order that kernels want, and back.

    In half precision a window of one takes the order there is, unless there is a stride: then all is reordered.
    """
    beyond = max(0, wide.bytes - wide.bytes // max(1, prod(wide.shape[2:])) * image)
    if not beyond:
        return 0.0
    half = case.itemsize == 2
    if half and window == 1 and not turned:
        return REORDERING["window of one"] * case.on.kernel_s("turned.forward", "float32", 2 * wide.bytes)
    kind = "turned, half" if turned and half else "turned" if turned else "strided"
    return REORDERING[kind] * case.on.kernel_s("turned.forward", "float32", 2 * beyond)


REORDERING = {"strided": 0.7, "window of one": 1.0, "turned": 1.2, "turned, half": 1.9}
"""Of the time that a plain copy into another order takes: what cuDNN's own copies did on an H200."""


def _convolution_bias(case: Case) -> Seconds:
    """Added to the result in place; its gradient is a sum over all pixels."""
    result, bias = case.results[0], case.operands[2]
    kernels = ("broadcast.forward", "add.forward")
    forward_s = sum(case.kernel(kernel, 2 * result.bytes) for kernel in kernels) / len(kernels)
    if not bias.grad:
        return forward_s, 0.0
    channels = result.shape[1]
    width = prod(result.shape) // channels
    return forward_s, case.on.rows_s("mean", "forward", case.dtype, case.itemsize, channels, width)


def window_size(case: Case) -> int:
    """Elements that are looked at for each result."""
    return prod(case.operands[1].shape[2:])
