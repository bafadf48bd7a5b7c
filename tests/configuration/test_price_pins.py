"""Pins of a price: every form and value, each told with an example; what is on the host, and bytes by precision."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields

import pytest

import meshwright as mw
from meshwright.configuration import Configuration
from meshwright.configuration.configuration import configured
from meshwright.errors import PlanError
from meshwright.pins.of_price import PINS


def test_a_price_has_no_gap() -> None:
    """Nothing was searched."""
    found = mw.price("llama3-8b", "h100:8", ("zero=3", "micro_batch=2"))
    assert "gap" not in repr(found)
    assert "no bound known" in repr(found)


def test_pins_are_given_in_any_form() -> None:
    step_s = mw.price("llama3-8b", "h100:8", ("tp=2", "sp=on")).step_s
    assert mw.price("llama3-8b", "h100:8", mw.Constraints(tp=2, sp=True)).step_s == step_s
    assert mw.price("llama3-8b", "h100:8", {"tp": 2, "sp": True}).step_s == step_s
    with pytest.raises(PlanError, match="global_batch=0"):
        mw.price("llama3-8b", "h100:8", global_batch=0)


@pytest.mark.parametrize(
    ("model", "pins", "words"),
    [
        ("resnet50", ("tp=2",), "family resnet"),
        ("llama3-8b", ("tq=2",), "pin 'tq=2'"),
        ("llama3-8b", ("tp=two",), "pin 'tp=two'"),
        ("llama3-8b", ("tp=3",), "devices"),
        ("llama3-8b", ("tp=2", "tp=4"), "pins tp=2 and tp=4"),
        ("llama3-8b", ("schedule=fast",), "schedule=fast"),
        ("llama3-8b", ("global_batch=0",), "global_batch=0"),
        ("llama3-8b", ("dp=0",), "dp=0\n  expected: 1 or more"),
        ("llama3-8b", ("micro_batch=0",), "micro_batch=0\n  expected: 1 or more"),
        ("llama3-8b", ("vpp=0",), "vpp=0\n  expected: 1 or more"),
        ("llama3-8b", ("vpp=-1",), "vpp=-1\n  expected: 1 or more"),
        ("llama3-8b", ("gathers=0", "zero=3"), "gathers=0\n  expected: 1 to 4"),
        ("llama3-8b", ("zero=3:2",), "such as zero=3"),
        ("llama3-8b", ("dp=99999999999999999999",), "such as dp=4"),
        ("llama3-8b", ("reduce=int8",), "one of float32, bfloat16"),
        ("llama3-8b", ("gathers=3",), "gathers=3 with zero=0"),
        ("llama3-8b", ("overlop=1",), "did you mean overlap=0.5"),
        ("llama3-8b", ("recomputed=3+0+1", "pp=2"), "recomputed=3.0.1 with pp=2"),
        ("llama3-8b", ("offload=nan",), "offload=nan"),
        ("llama3-8b", ("offload=5",), "offload=5\n  expected: 0 to 1"),
        ("llama3-8b", ("offload=0.5+0",), "offload=0.5.0 with pp=1\n  expected: 1 number"),
        ("llama3-8b", ("offload=0.5", "pp=2"), "offload=0.5 with pp=2\n  expected: 2 numbers"),
        ("llama3-8b", ("offload=optimizer",), "write offload=0.5"),
        ("llama3-8b", ("offload_overlap=1",), "with no offload"),
        ("llama3-8b", ("pp=8", "vpp=8"), "layers"),
        ("llama3-8b", ("ep=4",), "ep=4"),
        ("llama3-8b", ("zero=4",), "zero=4"),
        ("llama3-8b", ("precision=int3",), "precision=int3"),
        ("llama3-8b", ("skew=nan",), "skew=nan"),
        ("llama3-8b", ("overlap=2",), "overlap=2"),
        ("llama3-8b", ("vpp=2",), "pins pp=1 and vpp=2"),
        ("llama3-8b", ("sp=on",), "pins tp=1 and sp=on"),
        ("llama3-8b", ("skew=0.5",), "skew=0.5 of a model without experts"),
        ("mixtral-8x7b", ("skew=0.5",), "skew=0.5 with ep=1"),
        ("moe?experts=4&top=4", ("skew=0.5", "ep=2"), "skew=0.5 where each token goes to all of 4 experts"),
    ],
)
def test_impossible_configurations_are_refused_by_name(model: str, pins: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        mw.price(model, "h100:8", pins)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["mixed", "fp32"])
def test_what_is_on_the_host_is_not_on_the_device_and_takes_its_copies(zero: int, precision: str) -> None:
    """AdamW's states, and the master copy where weights are computed with in another one."""
    pins, weights = (f"zero={zero}", f"precision={precision}"), 354.8e6
    none, half, all_ = (mw.price("gpt2-medium", "h100:4", (*pins, f"offload={share}")) for share in (0, 0.5, 1))
    states = 8 if precision == "fp32" else 10 if zero == 3 else 12
    assert none.host_bytes == 0
    assert all_.host_bytes == pytest.approx(states * weights / (4 if zero else 1), rel=0.01)
    assert half.host_bytes == pytest.approx(all_.host_bytes / 2, abs=100)
    for one in (half, all_):
        assert none.static_bytes - one.static_bytes == one.host_bytes
        assert none.peak_bytes - one.peak_bytes == one.host_bytes
    assert none.step_s < half.step_s < all_.step_s < none.step_s + all_.host_bytes / 50e9
    hidden = mw.price("gpt2-medium", "h100:4", (*pins, "offload=1", "offload_overlap=1"))
    assert (hidden.step_s, hidden.peak_bytes) == (none.step_s, all_.peak_bytes)


@pytest.mark.parametrize(
    ("precision", "bytes_"), [("mixed", (18, 9, 6, 4)), ("bf16", (8, 5, 4, 2)), ("fp32", (16, 10, 8, 4))]
)
def test_bytes_of_a_weight_by_precision_and_zero(precision: str, bytes_: tuple[int, ...]) -> None:
    """Weights, gradients, AdamW's states and, in `mixed`, a master copy; with ZeRO-1 weights are whole everywhere."""
    for zero, each in enumerate(bytes_):
        found = mw.price("gpt2-medium", "h100:4", (f"zero={zero}", f"precision={precision}"), global_batch=32)
        assert found.static_bytes == pytest.approx(each * 354.8e6, rel=0.01)


def test_gradients_in_bf16_are_bf16_unless_pinned() -> None:
    given = configured(("precision=bf16",), 8)
    assert (given.gradients, given.reduce, given.stored) == ("bfloat16", "bfloat16", "bfloat16")
    wide = configured(("precision=bf16", "gradients=float32", "reduce=float32"), 8)
    assert (wide.gradients, wide.reduce) == ("float32", "float32")
    mixed, half = (mw.price("gpt2-medium", "h100:4", (f"precision={one}",)) for one in ("mixed", "bf16"))
    assert half.step_s < mixed.step_s
    assert half.optimizer_s < mixed.optimizer_s


def test_stages_may_have_other_shares_on_the_host() -> None:
    none, first = (mw.price("gpt2-medium", "h100:4", ("pp=2", f"offload={shares}")) for shares in ("0+0", "1+0"))
    stages = [mw.price("gpt2-medium", "h100:4", ("pp=2", f"offload={shares}")) for shares in ("1+1", "0+1")]
    assert none.peak_bytes >= first.peak_bytes > stages[0].peak_bytes
    assert first.host_bytes > 0 < stages[1].host_bytes


@pytest.mark.parametrize("name", [one.name for one in fields(Configuration) if one.type in ("int", "float")])
@pytest.mark.parametrize("value", ["0", "-1", "1e9", "1.5", "nan", "inf", "", "9" * 30])
def test_no_number_makes_anything_but_a_price_or_a_refusal(name: str, value: str) -> None:
    with suppress(PlanError):
        assert mw.price("gpt", "h100:4", (f"{name}={value}",)).step_s > 0


def test_every_pin_is_told_and_its_example_can_be_used() -> None:
    assert set(PINS) == {one.name for one in fields(Configuration)} - {"recorded"}
    needs = {
        "gathers": ("zero=3",), "offload_overlap": ("offload=1",), "listed": ("zero=3",), "scatter": ("zero=1",),
        "context": ("cp=2",), "casts": ("precision=fp8",), "skew": ("ep=2",), "sp": ("tp=2",), "vpp": ("pp=2",),
        **dict.fromkeys(("tp_overlap", "tp_pipelined"), ("tp=2",)),
        **dict.fromkeys(("schedule", "stage_layers", "recomputed", "in_turn"), ("pp=2",)),
    }  # fmt: skip
    for name, (example, _) in PINS.items():
        model = "moe?layers=24&experts=4" if name in ("ep", "skew") else "llama3-8b?layers=24"
        cluster = "h100:4" if name in ("dp", "ep") else "h100:8"
        assert mw.price(model, cluster, (*needs.get(name, ()), example)).step_s > 0, name
