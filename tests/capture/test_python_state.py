"""What a forward does besides computing: buffers it sets, hooks, branches on values, what it remembers in Python.

Each is captured so that steps give what plain PyTorch gives, or is refused by name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from meshwright.capture import capture
from meshwright.capture.execute import run
from meshwright.errors import CaptureError, MeshwrightError, ModelError

Middle = Callable[[Any, Tensor], Tensor]


class Around(nn.Module):
    """Two layers with something in between, and a buffer and attributes for it."""

    def __init__(self, middle: Middle) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle = middle
        self.register_buffer("centre", torch.zeros(8))
        self.steps, self.kept, self.layerdrop = 0, None, 0.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.last(self.middle(self, torch.tanh(self.first(x)))), y)


def batches() -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [{"x": torch.randn(4, 6), "y": torch.randn(4, 3)} for _ in range(3)]


def assert_trains_like(model: nn.Module, **options: Any) -> None:
    """Three steps of SGD on different batches: losses, gradients and buffers of the Program are those of the model."""
    given = batches()
    program = capture(model, given[0], **options)
    tensors = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for batch in given:
        loss, after = run(program, tensors | state, batch, torch.device("cpu"))
        truth = model(**batch)
        model.zero_grad()
        truth.backward()
        used = [parameter.name for parameter in program.parameters if parameter.trainable]
        gradients = torch.autograd.grad(loss, [tensors[name] for name in used])
        torch.testing.assert_close(loss, truth)
        state |= {name: tensor.detach() for name, tensor in after.items()}
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(state[name], buffer, msg=name)
        for name, gradient in zip(used, gradients, strict=True):
            truly = model.get_parameter(name)
            torch.testing.assert_close(gradient, truly.grad, msg=name)
            with torch.no_grad():
                tensors[name] -= 0.1 * gradient
                truly -= 0.1 * truly.grad


def set_buffer(self: Any, h: Tensor) -> Tensor:
    self.centre = 0.9 * self.centre + 0.1 * h.detach().mean(0)
    return h - self.centre


def set_data(self: Any, h: Tensor) -> Tensor:
    self.centre.data = 0.9 * self.centre + 0.1 * h.mean(0)
    return h - self.centre


def write_data(self: Any, h: Tensor) -> Tensor:
    self.centre.data.mul_(0.9).add_(h.data.mean(0), alpha=0.1)
    return h - self.centre


def write_out(self: Any, h: Tensor) -> Tensor:
    result = h + self.centre
    with torch.no_grad():
        torch.mean(h, 0, out=self.centre)
    return result


def write_integers(self: Any, h: Tensor) -> Tensor:
    torch.add(torch.arange(8), 1, out=self.centre)
    return h / self.centre


def raise_in_place(self: Any, h: Tensor) -> Tensor:
    return h * h.abs().sum(1, keepdim=True).pow_(-0.5)


def drop_never(self: Any, h: Tensor) -> Tensor:
    return h if self.training and torch.rand([]) < self.layerdrop else torch.sin(h)


def check_first(self: Any, h: Tensor) -> Tensor:
    if torch.isnan(h).any():
        raise ValueError("not a number")
    if not torch.isfinite(h).all().item():
        raise ValueError("not finite")
    assert (h.abs() < 2).all()
    return torch.sin(h)


def write_spectrum(self: Any, h: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(h)
    found = torch.zeros(h.shape[0], 5, dtype=torch.cfloat)
    found[:, :3] = spectrum[:, :3] * 2
    found[..., 4] = spectrum[..., 1]
    return torch.fft.irfft(found, n=8)


def keep_result(self: Any, h: Tensor) -> Tensor:
    self.kept = h
    return h + self.kept


FOLLOWED = [
    set_buffer, set_data, write_data, write_out, write_integers, raise_in_place, drop_never, check_first,
    write_spectrum, keep_result,
]  # fmt: skip


@pytest.mark.parametrize("middle", FOLLOWED)
def test_a_forward_that_does_more_trains_like_the_model(middle: Middle) -> None:
    assert_trains_like(Around(middle))


@pytest.mark.parametrize("normal", [spectral_norm, parametrizations.spectral_norm])
def test_power_iterations_go_on(normal: Callable[[nn.Module], nn.Module]) -> None:
    model = Around(lambda self, h: h)
    model.first = normal(model.first)
    assert_trains_like(model)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inner(x))
        self.centre = 0.5 * self.centre + 0.5 * x.detach().mean(0)
        return x - self.centre


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.last = nn.ModuleList(Remembering() for _ in range(4)), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.last(x), y)


def test_buffers_are_set_in_layers_that_are_traced_once() -> None:
    assert_trains_like(Layers())


def test_a_sparse_gradient_is_had_as_a_dense_one() -> None:
    model = Around(lambda self, h: h + self.table(h.argmax(1) % 4))
    model.table = nn.Embedding(4, 8, sparse=True)
    batch = batches()[0]
    program = capture(model, batch)
    tensors = dict(model.named_parameters())
    loss, _ = run(program, tensors | dict(model.named_buffers()), batch, torch.device("cpu"))
    (gradient,) = torch.autograd.grad(loss, [model.table.weight])
    model(**batch).backward()
    assert model.table.weight.grad is not None
    torch.testing.assert_close(gradient, model.table.weight.grad.to_dense())


def test_forward_hooks_are_followed() -> None:
    model = Around(lambda self, h: h)
    model.first.register_forward_hook(lambda module, given, result: result * 2 + model.last.weight.mean())
    model.last.register_forward_pre_hook(lambda module, given: (given[0] * 3,))
    assert_trains_like(model)


def test_a_function_that_closes_over_the_model_sees_its_parameters() -> None:
    model = Around(lambda self, h: self.turn(h))
    model.turn = lambda h: h @ model.last.weight.t() @ model.last.weight
    assert_trains_like(model)


def count(self: Any, h: Tensor) -> Tensor:
    self.steps += 1
    return h


def lag(self: Any, h: Tensor) -> Tensor:
    result = h if self.kept is None else h + self.kept
    self.kept = h.detach()
    return result


TURNS = [0]


def count_outside(self: Any, h: Tensor) -> Tensor:
    TURNS[0] += 1
    return h * TURNS[0]


class CountsOutside(Around):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        TURNS[0] += 1
        return super().forward(x * TURNS[0], y)


def hook(self: Any, h: Tensor) -> Tensor:
    h.register_hook(lambda gradient: gradient * 3)
    return h


def branch(self: Any, h: Tensor) -> Tensor:
    if (h > 0.5).any():
        h = h * 2
    return h


def branch_and_raise(self: Any, h: Tensor) -> Tensor:
    if (h > 0.5).any() and not (h < 0.5).any():
        raise ValueError
    return h


def drop_sometimes(self: Any, h: Tensor) -> Tensor:
    return h if torch.rand([]) < 0.5 else torch.sin(h)


def penalise(self: Any, h: Tensor) -> Tensor:
    return h + torch.autograd.grad(h.sum(), self.first.weight, create_graph=True)[0].sum()


def compress(self: Any, h: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        return torch.sin(h)


def write_many(self: Any, h: Tensor) -> Tensor:
    torch._foreach_mul_([self.centre, self.centre], 0.5)
    return h


STRAY = nn.Parameter(torch.ones(8))

REFUSED: list[tuple[Middle, str]] = [
    (count, "remembers 'steps'"),
    (lag, "remembers 'kept'"),
    (hook, r"register_hook.*test_python_state.py"),
    (branch, r"asks for a tensor's value, at .*test_python_state.py:\d+ `if \(h > 0.5\).any\(\):`"),
    (branch_and_raise, "asks for a tensor's value"),
    (drop_sometimes, "asks for a tensor's value"),
    (penalise, "takes derivatives of its own"),
    (compress, "saved_tensors_hooks"),
    (write_many, "writes to several tensors"),
    (lambda self, h: h * random.random(), "random numbers from Python's `random`"),
    (lambda self, h: h * float(np.random.rand()), "random numbers from `numpy.random`"),
    (lambda self, h: h * STRAY, "is no parameter"),
]


@pytest.mark.parametrize(("middle", "fault"), REFUSED)
def test_what_a_program_cannot_hold_is_refused(middle: Middle, fault: str) -> None:
    with pytest.raises(CaptureError, match=fault) as refused:
        capture(Around(middle), batches()[0])
    assert refused.value.expected
    assert refused.value.todo


def test_numbers_outside_the_model_may_not_change() -> None:
    with pytest.raises(CaptureError, match="remembers 'TURNS of"):
        capture(CountsOutside(lambda self, h: h), batches()[0])


def test_a_clock_may_be_read_but_not_computed_with() -> None:
    def logged(self: Around, h: Tensor) -> Tensor:
        self.began = time.perf_counter()
        return h

    def warmed_up(self: Around, h: Tensor) -> Tensor:
        return h * (time.time() % 60)

    assert capture(Around(lambda self, h: h if time.time() > 0 else -h), batches()[0])
    with pytest.raises(CaptureError, match=r"computes with time\.time,"):
        capture(Around(warmed_up), batches()[0])
    with pytest.raises(CaptureError, match="began"):
        capture(Around(logged), batches()[0])


def hooked(model: Around, kind: str) -> None:
    if kind == "parameter":
        model.first.weight.register_hook(lambda gradient: gradient * 3)
    elif kind == "accumulated":
        model.first.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    elif kind == "module":
        model.first.register_full_backward_hook(lambda module, given, got: None)
    else:
        model.first.register_full_backward_pre_hook(lambda module, got: None)


@pytest.mark.parametrize("kind", ["parameter", "accumulated", "module", "before a module"])
def test_hooks_on_gradients_are_refused(kind: str) -> None:
    model = Around(lambda self, h: h)
    hooked(model, kind)
    with pytest.raises(ModelError, match="first"):
        capture(model, batches()[0])


def test_hooks_on_all_modules_are_refused() -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda module, given, got: None)
    try:
        with pytest.raises(ModelError, match="all modules"):
            capture(Around(lambda self, h: h), batches()[0])
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("layer", "fault"),
    [(nn.BatchNorm1d(8, momentum=None), "momentum=None"), (nn.Embedding(4, 8, max_norm=1.0), "max_")],
)
def test_layers_that_need_another_setting_are_named(layer: nn.Module, fault: str) -> None:
    model = Around(lambda self, h: h)
    model.layer = layer
    with pytest.raises(ModelError, match=f"'layer'.*{fault}"):
        capture(model, batches()[0])


@pytest.mark.parametrize("answer", [True, False])
def test_a_line_is_allowed_by_name_and_its_answer_recorded(answer: bool) -> None:
    with pytest.raises(CaptureError) as refused:
        capture(Around(branch), batches()[0])
    line = refused.value.todo.partition("allow='")[2].partition("=")[0]
    program = capture(Around(branch), batches()[0], allow=f"{line}={answer}")
    assert [entry.endswith(f"{line}={answer}") for entry in program.answers] == [True]
    assert any(op.target == "aten.mul.Tensor" for _, op in program.ops()) == answer


def test_lines_that_only_raise_are_left_out() -> None:
    def checked(self: Around, h: Tensor) -> Tensor:
        torch._check_tensor_all(h < 1e9)
        assert bool((h > -1e9).all())
        if torch.isnan(h).any():
            raise ValueError("not a number")
        return h

    program = capture(Around(checked), batches()[0])
    plain = capture(Around(lambda self, h: h), batches()[0])
    assert {op.target for _, op in plain.ops()} <= {op.target for _, op in program.ops()}


def test_a_line_that_is_none_is_refused() -> None:
    with pytest.raises(ModelError, match="allow='layerdrop'"):
        capture(Around(branch), batches()[0], allow="layerdrop")


def test_four_threads_capture_and_leave_torch_as_it_was() -> None:
    before = torch.autograd.Function.apply
    failures: list[MeshwrightError] = []

    def work() -> None:
        try:
            capture(Around(set_buffer), batches()[0])
        except MeshwrightError as error:
            failures.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert torch.autograd.Function.apply == before
