"""Convolution."""

from __future__ import annotations

from math import prod

from meshwright.cost.op.case import Case, Seconds


def convolution(case: Case) -> Seconds:
    """A turned one runs the gradient of the plain one forward, and the plain one backward."""
    x, weight = case.operands[:2]
    turned = "transpose" in case.name
    output, wide = (x, case.results[0]) if turned else (case.results[0], x)
    groups = max(1, wide.shape[1] // weight.shape[1])
    if groups > 1 and groups == wide.shape[1] and not turned:
        forward_s, inputs_s, weights_s = _depthwise(case)
    else:
        forward_s, inputs_s, weights_s = _dense(case, output.shape, wide.shape, groups, turned)
    if len(case.operands) > 2:
        bias_s = _bias(case)
        forward_s += bias_s[0]
        weights_s += bias_s[1]
    return forward_s, inputs_s, weights_s


def host_names(case: Case) -> tuple[list[str], list[str]]:
    """Of the host's figures, those to add up and those to take away: a bias costs the same with any window."""
    bias = len(case.operands) > 2
    if "transpose" in case.name:
        return ["convolution_turned"], []
    more, less = (["convolution_bias"], ["convolution"]) if bias else ([], [])
    if window_size(case) == 1:
        return ["convolution_1x1", *more], less
    if _is_depthwise(case):
        return ["depthwise", *more], less
    return more or ["convolution"], []


def _is_depthwise(case: Case) -> bool:
    x, weight = case.operands[:2]
    return weight.shape[1] == 1 and x.shape[1] > 1 and "transpose" not in case.name


def _dense(case: Case, output: tuple[int, ...], wide: tuple[int, ...], groups: int, turned: bool) -> Seconds:
    x, weight = case.operands[:2]
    image, there = max(1, prod(output[2:])), prod(wide[2:])
    sizes = (output[0], image, weight.shape[1], weight.shape[0], window_size(case), max(image, there), groups)

    def side(name: str) -> float:
        return case.on.convolution_s(name, case.dtype, case.itemsize, sizes)

    forward_s = side("input" if turned else "forward")
    inputs_s = side("forward" if turned else "input") if x.grad else 0.0
    return forward_s, inputs_s, side("weight") if weight.grad else 0.0


ONCE = 0.43
"""Of what a depthwise window of nine takes: reading and writing, which larger windows do not repeat. Measured on an
H200 in fp32: windows of 49 on images of 7 to 56 pixels take 3.5 times as long as windows of nine."""


def depthwise_work(n_bytes: float, window: int) -> float:
    """Of a result of so many bytes, in those of a result whose window is nine, as calibration has it."""
    return n_bytes * (ONCE + (1 - ONCE) * window / 9)


def _depthwise(case: Case) -> Seconds:
    """Each channel by itself. Both gradients were measured as one."""
    work = depthwise_work(case.results[0].bytes, window_size(case))
    half_s = case.kernel("depthwise.backward", work) / 2
    x, weight = case.operands[:2]
    return case.kernel("depthwise.forward", work), half_s * x.grad, half_s * weight.grad


def _bias(case: Case) -> tuple[float, float]:
    """Added to the result in place; its gradient is a sum over all pixels."""
    result, bias = case.results[0], case.operands[2]
    forward_s = case.kernel("bias.forward", 2 * result.bytes)
    if not bias.grad:
        return forward_s, 0.0
    channels = result.shape[1]
    width = prod(result.shape) // channels
    return forward_s, case.on.rows_s("channel_sum", "forward", case.dtype, case.itemsize, channels, width)


def window_size(case: Case) -> int:
    """Elements that are looked at for each result."""
    return prod(case.operands[1].shape[2:])
