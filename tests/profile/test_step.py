"""A Profile agrees with real runs: FLOPs with torch's counter, saved bytes with autograd, peaks with live tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from live_bytes import peak_of
from small_references import SMALL, loss_of, real
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meshwright.capture import Program, capture
from meshwright.errors import ModelError, VerifyError
from meshwright.profile import Profile, profile_step

PEAK_TOLERANCE = {"moe": 0.03, "hf:mixtral": 0.13, "unet": 0.01, "amoebanet": 0.01, "mlp": 0.01, "hf:t5": 0.03}
"""Where backward works in more or less than its gradients (grouped products, padding), or Python frees late (t5)."""


QUICK = ("gpt", "moe", "resnet", "unet", "mlp")
"""Of each kind one: text with dropout, mixtures of experts, images, skips, a chain; `make test-all` takes all."""
NAMES = [pytest.param(name, marks=[pytest.mark.full] * (name not in QUICK)) for name in SMALL]


@cache
def program(name: str, dtype: torch.dtype = torch.float32) -> Program:
    return capture(*real(name, dtype=dtype), keyed=False)


@cache
def profile(name: str, dtype: torch.dtype = torch.float32) -> Profile:
    found = profile_step(program(name, dtype), device="cpu")
    found.verify()
    return found


def grouped_flops(first: Any, second: Any, *rest: Any, out_shape: Any = None, **named: Any) -> int:
    """torch has no formula for grouped products: rows by columns of the first, by columns of the second."""
    return 2 * first[0] * first[1] * second[-1]


@pytest.mark.parametrize("name", NAMES)
def test_flops_equal_torchs_counter(name: str) -> None:
    model, batch = real(name)
    known = {torch.ops.aten._grouped_mm: grouped_flops}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=known) as counter:
        loss = loss_of(model, batch)
        forward = counter.get_total_flops()
        loss.backward()
    assert forward > 0
    assert profile(name).forward_flops == forward
    assert profile(name).step_flops == counter.get_total_flops()


def kept_bytes(name: str, dtype: torch.dtype) -> int:
    """Bytes that autograd keeps of a real run, each storage once; parameters, buffers and the batch aside."""
    model, batch = real(name, dtype=dtype)
    outside = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *batch.values())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model, batch)
    return sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in outside)


@pytest.mark.parametrize("name", NAMES)
def test_saved_bytes_equal_what_autograd_keeps(name: str) -> None:
    assert profile(name).saved_bytes == kept_bytes(name, torch.float32)


HALF = ("gpt", "moe")
"""Text and mixtures of experts; `make test-all` takes all."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name not in HALF)) for name in SMALL])
def test_saved_bytes_equal_what_autograd_keeps_in_half_precision(name: str) -> None:
    assert profile(name, torch.bfloat16).saved_bytes == kept_bytes(name, torch.bfloat16)


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_of_both_passes_is_that_of_live_tensors(name: str) -> None:
    model, batch = real(name)
    outside = [*model.parameters(), *model.buffers(), *batch.values()]
    measured = peak_of(outside, lambda: loss_of(model, batch).backward())
    found = profile(name)
    beside = found.static.resident_bytes + found.batch_bytes
    predicted = max(peak.bytes for peak in found.phase_peaks if peak.phase != "optimizer") - beside
    assert predicted == pytest.approx(measured, rel=PEAK_TOLERANCE.get(name, 2e-4))


def test_batch_scales_what_it_should() -> None:
    once, twice = (profile_step(program("gpt").at_batch(n), device="cpu") for n in (3, 6))
    assert twice.forward_flops == 2 * once.forward_flops
    assert twice.static == once.static
    assert 1.9 * once.saved_bytes < twice.saved_bytes <= 2 * once.saved_bytes


def test_causal_attention_is_also_counted_at_its_half() -> None:
    found = profile("gpt")
    attention = 3 * 4 * 3 * 4 * 12 * 12 * 6  # layers, two products of two, batch, heads, queries, keys, width
    assert found.forward_flops - found.total("forward_causal_flops") == attention // 2


def test_a_tied_weight_counts_once() -> None:
    tied, untied = (profile_step(capture(*real_gpt(tied)), device="cpu") for tied in (True, False))
    assert untied.params - tied.params == 32 * 24
    assert untied.static.gradient_bytes - tied.static.gradient_bytes == 4 * 32 * 24


def real_gpt(tied: bool) -> tuple[torch.nn.Module, dict[str, Tensor]]:
    from meshwright.models.reference import parse_reference

    text = f"gpt?layers=2&hidden=24&heads=4&ffn=48&vocab=32&seq=12&tied={str(tied).lower()}"
    return parse_reference(text).meta(3)[:2]


def test_precision_must_be_the_programs_own() -> None:
    with pytest.raises(ModelError, match="bf16 of a Program whose parameters are float32"):
        profile_step(program("mlp"), precision="bf16")
    mixed = profile_step(program("gpt", torch.bfloat16), precision="mixed")
    half = profile_step(program("gpt", torch.bfloat16))
    assert half.precision == "bf16"
    assert mixed.static.compute_copy_bytes == half.static.parameter_bytes
    single = profile_step(program("gpt"))
    assert mixed.static.optimizer_bytes == single.static.optimizer_bytes > half.static.optimizer_bytes


def test_a_profile_that_contradicts_itself_is_refused() -> None:
    from dataclasses import replace

    found = profile("mlp")
    with pytest.raises(VerifyError, match="saved bytes"):
        replace(found, saved_bytes=found.saved_bytes + 1).verify()
    with pytest.raises(VerifyError, match="parts of the peak"):
        replace(found, peak=replace(found.peak, bytes=1)).verify()
