"""Optimizer state, temporaries and the allocator's rounding, against torch's optimizers and closed forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.capture.program import Parameter, TensorType
from meshwright.errors import ModelError
from meshwright.profile.static import Optimizer, cuda_round, static

SHAPES = ((6, 4), (10,), (3, 5))
PARAMETERS = [Parameter(f"p{i}", TensorType(shape, "float32")) for i, shape in enumerate(SHAPES)]
NUMBERS = 24 + 10 + 15


def real_state_bytes(optimizer: Optimizer) -> int:
    """Bytes of state that a real optimizer holds after a step."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "momentum": torch.optim.SGD}
    extra = {"momentum": 0.9} if optimizer == "momentum" else {}
    made = kinds[optimizer](parameters, lr=0.1, **extra)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    made.step()
    tensors = [t for state in made.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return sum(t.untyped_storage().nbytes() for t in tensors)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "momentum"])
def test_state_is_what_torchs_optimizer_holds(optimizer: Optimizer) -> None:
    found = static(PARAMETERS, [], optimizer=optimizer, precision="fp32", device="cpu", implementation="foreach")
    assert found.optimizer_bytes == real_state_bytes(optimizer)
    assert found.parameter_bytes == found.gradient_bytes == 4 * NUMBERS


def test_foreach_needs_a_copy_of_all_parameters_and_fused_none() -> None:
    named = {"optimizer": "adamw", "precision": "fp32", "device": "cuda"}
    foreach = static(PARAMETERS, [], implementation="foreach", **named)  # type: ignore[arg-type]
    fused = static(PARAMETERS, [], implementation="fused", **named)  # type: ignore[arg-type]
    assert foreach.optimizer_temporary_bytes == foreach.parameter_bytes == 3 * 512
    assert fused.optimizer_temporary_bytes == 0
    assert fused.optimizer_bytes - foreach.optimizer_bytes == 3 * 512  # steps are counted on the device


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    frozen = [Parameter("p", TensorType((8, 8), "float32"), trainable=False)]
    found = static(frozen, [], optimizer="adamw", precision="fp32", device="cpu", implementation="foreach")
    assert (found.parameter_bytes, found.gradient_bytes, found.optimizer_bytes) == (256, 0, 0)


def test_an_unknown_optimizer_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="lion"):
        static(PARAMETERS, [], optimizer="lion", precision="fp32", device="cpu", implementation="foreach")  # type: ignore[arg-type]


@given(st.integers(0, 1 << 34))
def test_rounding_is_whole_blocks_and_never_wastes_a_mebibyte(size: int) -> None:
    rounded = cuda_round(size)
    assert rounded >= size
    assert rounded % 512 == 0
    assert rounded - size <= (1 << 20) + 511


def test_rounding_of_large_blocks() -> None:
    mib = 1 << 20
    assert cuda_round(1) == 512
    assert cuda_round(5 * mib + 1) == 5 * mib + 512
    assert cuda_round(13 * mib + mib // 2) == 14 * mib  # half a mebibyte is not worth splitting off
    assert cuda_round(12 * mib + mib // 2) == 12 * mib + mib // 2
