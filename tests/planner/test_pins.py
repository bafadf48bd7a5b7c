from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from math import prod

import pytest
import torch
from small_models import small_model
from torch import nn

import meshwright as mw
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.explain.recipes import Baseline, baselines
from meshwright.explain.what_if import changed_pins
from meshwright.layout import Layout
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


@cache
def gpt() -> Program:
    return capture(*small_model("gpt"))


@pytest.mark.parametrize(
    ("pins", "fault"),
    [
        (("dp=4",), "whose product divides 2"),
        (("dp=2", "tp=2"), "one for each pin"),
        (("dp=1", "tp=1"), "sizes whose product is 2"),
        (("zero=7",), "zero=0 to 3"),
        (("dp=lots",), "whole number"),
        (("nonsense",), "name=value"),
        (("no.such.*=S(0)",), "matches no parameter"),
        (("tokens.weight=R",), "S(dim) or I"),
        (("tokens.weight=S(2)",), "for tokens.weight of shape"),
        (("foo=2",), "one of pp=2"),
        (("ep=2",), "experts that 2 divides; the model has none"),
        (("cp=0",), "a whole number from 1"),
        (("vpp=two",), "a whole number from 1"),
        (("pp=2", "recompute=rotor"), "one stage for a nested order"),
        (("*.up.weight=S(0)", "layers.0.up.weight=S(1)"), "pins *.up.weight=S(0) and layers.0.up.weight=S(1)"),
    ],
)
def test_pins_that_cannot_be_are_refused_by_name(pins: tuple[str, ...], fault: str) -> None:
    program = gpt()
    with pytest.raises(PlanError) as caught:
        make_plan(program, load_cluster("local:2"), pins=pins)
    assert fault in str(caught.value)
    assert any(pin.split("=")[0] in str(caught.value) for pin in pins)


@pytest.mark.parametrize(
    ("pins", "given"),
    [
        (("mesh=4", "dp=2"), "pins mesh=4 and dp=2"),
        (("mesh=4", "tp=2"), "pins mesh=4 and tp=2"),
        (("*.up.weight=S(0) on tp", "tp=1"), "pins '*.up.weight=S(0) on tp' and tp=1"),
        (("*.up.weight=S(0) on dp", "mesh=2x2", "dp=4"), "pin '*.up.weight=S(0) on dp' with dp=4 over axes of 2x2"),
        (("sp=on", "tp=1"), "pins sp=on and tp=1 on 4 devices"),
        (("sp=on", "dp=4"), "pins sp=on and dp=4 on 4 devices"),
        (("mesh=4", "cp=2"), "pins mesh=4 and cp=2"),
        (("pp=1", "vpp=2"), "pins pp=1 and vpp=2"),
        (("pp=3", "layers=1+2"), "pins pp=3 and layers=1+2"),
        (("schedule=1f1b", "vpp=2"), "pins schedule=1f1b and vpp=2"),
        (("schedule=interleaved", "vpp=1"), "pins schedule=interleaved and vpp=1"),
        (("tp=1", "cp=2", "dp=4"), "pins dp=4 and tp=1 and cp=2 on 4 devices"),
    ],
)
def test_pins_that_contradict_each_other_are_both_named(pins: tuple[str, ...], given: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(gpt(), load_cluster("local:4"), pins=pins)
    assert caught.value.given == given
    assert caught.value.todo.startswith(("change", "drop"))


@pytest.mark.parametrize(
    ("pin", "todo"),
    [("*.up.weight=S(0) on tp", "add a pin such as tp=2"), ("*.up.weight=S(0) on foo", "correct the pin")],
)
def test_storage_on_an_axis_that_no_pin_names(pin: str, todo: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(gpt(), load_cluster("local:2"), pins=(pin,))
    assert caught.value.todo == todo


IMPOSSIBLE = {
    "dp=x": "pin 'dp=x'",
    "tp=4 tp=2": "pins tp=4 and tp=2",
    "pp=2 pp=4": "pins pp=2 and pp=4",
    "zero=1 zero=3": "pins zero=1 and zero=3",
    "recompute=full recompute=keep": "pins recompute=full and recompute=keep",
    "offload=auto offload=none": "pins offload=auto and offload=none",
    "mesh=2x4 mesh=4x2": "pins mesh=2x4 and mesh=4x2",
    "microbatch=2 microbatches=4": "pins microbatch=2 and microbatch=4",
    "tokens.weight=S(0) tokens.weight=S(1)": "pins tokens.weight=S(0) and tokens.weight=S(1)",
    "microbatch=16": "pin microbatch=16 with a global batch of 8",
    "pp=2 microbatch=16": "pin microbatch=16 with a global batch of 8",
    "dp=8 microbatch=2": "dp=8 with a global batch of 8 in 2 parts",
    "tp=16": "pin tp=16 on 8 devices",
    "mesh=8 tp=4": "pins mesh=8 and tp=4",
    "zero=3:5": "pin zero=3:5 on a mesh of (8,)",
    "sp=on dp=8": "pins sp=on and dp=8 on 8 devices",
    "pp=9": "pin pp=9 on 8 devices",
    "pp=2+2": "pin pp=2+2 on 8 devices",
    "pp=2 tp=8": "no pipeline with pp=2, tp=8 on 8 devices",
    "pp=3 schedule=interleaved": "no pipeline with pp=3, schedule=interleaved on 8 devices",
    "pp=2 recompute=rotor": "pin recompute=rotor with stages",
}
"""On 8 devices, with the batch of 8 that models have."""


def test_pins_that_no_model_can_have_are_refused_before_torch_is_there() -> None:
    words = "import sys; from meshwright.cli import main\nfor pins in sys.argv[1:]:\n"
    words += "    main(['plan', 'gpt2', '--cluster', 'h100:8', *map('--pin={}'.format, pins.split())])\n"
    words += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", words, *IMPOSSIBLE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stderr.splitlines() if line.startswith("meshwright: ")]
    for line, given in zip(found, IMPOSSIBLE.values(), strict=True):
        assert line.startswith(f"meshwright: {given}")


@pytest.mark.parametrize(
    ("pins", "fault"),
    [
        (mw.Constraints(microbatch=4), "microbatch=4 with a global batch of 6"),
        (mw.Constraints(tp=4), "pin tp=4 on 2 devices"),
        (mw.Constraints(dp=2, microbatch=6), "dp=2 with a global batch of 6 in 6 parts"),
        (["tokens.wieght=S(0)"], "did you mean tokens.weight or"),
        (mw.Constraints(storage={"layers.*.upp.weight": "S(0)"}), "did you mean layers.*.up.weight or"),
    ],
)
def test_pins_that_the_model_cannot_have_are_refused_before_it_is_captured(
    pins: list[str] | mw.Constraints, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.planner.plan_model.capture", lambda *_, **__: pytest.fail("captured"))
    model, batch = small_model("gpt")
    with pytest.raises(PlanError, match=re.escape(fault)):
        mw.plan(model, batch, "local:2", pins=pins)


def test_a_pin_may_be_given_twice() -> None:
    plan = make_plan(gpt(), load_cluster("local:2"), pins=("dp=2", "dp=2", "*.up.weight=S(0)", "*.up.weight=[S(0)]"))
    assert plan.mesh.names == ("dp",)


def test_data_parallel_is_ddp_and_fully_sharded_is_zero_3() -> None:
    program = capture(*small_model("llama"))
    cluster = load_cluster("local:2")
    ddp = make_plan(program, cluster, pins=("dp=2", "zero=0"))
    sharded = make_plan(program, cluster, pins=("dp=2", "zero=3"))
    assert {(entry.storage, entry.compute) for entry in ddp.parameters.values()} == {("[I]", "[R]")}
    assert {(entry.storage, entry.compute, entry.reshard_after_forward) for entry in sharded.parameters.values()} == {
        ("[S(0)]", "[R]", True)
    }
    read = [Layout.parse(text)[0].dim for text in ddp.stages[0].inputs.values()]
    assert set(read) == {0}, "ranks read their samples only"
    bytes_of = {parameter.name: 4 * prod(parameter.type.sizes) for parameter in program.parameters}
    gathered = sum(c.bytes for c in sharded.predicted.collectives if c.kind == "all_gather")
    once = sum(bytes_of[name] for name in (*program.segments[-1].params, "tokens.weight"))
    assert gathered == 2 * sum(bytes_of.values()) - once, "again for backward, but for the last segment and the table"


@pytest.mark.parametrize(
    ("pins", "names"),
    [
        (("dp=2",), {"dp"}),
        (("dp=1",), set()),
        (("tp=1",), {"dp", "dp2"}),
        (("tp=4",), {"tp", "tp2"}),
        (("dp=2", "tp=2"), {"dp", "tp"}),
    ],
)
def test_degrees_that_are_pinned_are_those_of_the_plan(pins: tuple[str, ...], names: set[str]) -> None:
    """Of data parallelism neither more nor less; weights are split where that is asked for."""
    plan = make_plan(gpt().at_batch(8), load_cluster("local:4"), pins=("mesh=2x2", "microbatch=1", *pins))
    found = set(plan.mesh.names)
    assert {name for name in found if name.startswith("dp")} == {name for name in names if name.startswith("dp")}
    assert names <= found
    if "tp" in names:
        axis = plan.mesh.names.index("tp")
        used = [entry.compute for name, entry in plan.parameters.items() if name.endswith("up.weight")]
        assert all(Layout.parse(text)[axis].is_shard for text in used)


@pytest.mark.parametrize("pins", [pytest.param(("tp=2", "zero=3"), marks=pytest.mark.full), ("pp=2", "tp=2")])
def test_weights_are_split_over_the_degree_that_is_pinned_and_no_more(pins: tuple[str, ...]) -> None:
    """A batch of one sample: the axes that are left would rather split weights than do the same work."""
    wide = capture(*parse_reference("gpt?layers=2&hidden=512&heads=8&ffn=2048&vocab=512&seq=16").meta(1))
    plan = make_plan(wide, load_cluster("local:8"), pins=("microbatch=1", *pins))
    for stage in plan.stages:
        for index in range(stage.first, stage.end):
            for text in plan.choice(index).parameters.values():
                degree = prod(
                    a.size for a, state in zip(stage.mesh.axes, Layout.parse(text), strict=True) if state.is_shard
                )
                assert degree <= 2, (pins, text, stage.mesh)


def test_a_pinned_number_of_micro_batches_holds_for_the_baselines() -> None:
    program, cluster = gpt(), load_cluster("local:2")
    first = baselines(program, cluster, pins=("microbatch=3",))[0]
    alone = make_plan(program, cluster, pins=("mesh=2", "dp=2", "zero=0", "microbatch=3"), recompute=False)
    assert first.step_s == pytest.approx(alone.predicted.step_s, rel=1e-9)
    assert first.peak_bytes == alone.predicted.peak_bytes  # as a plan's own, not what the search counts


def test_fsdp_with_full_checkpointing_takes_the_fewest_micro_batches_that_fit() -> None:
    """Each gathers every weight again."""
    program, cluster = gpt().at_batch(48), load_cluster("h100:2")

    def row(limit: int | None) -> Baseline:
        rows = baselines(program, cluster, memory_bytes=limit, stages=False, headroom=0.0)
        return next(one for one in rows if one.name == "FSDP + full checkpointing")

    roomy = row(None)
    assert roomy.pins == ("mesh=2", "dp=2", "zero=3", "recompute=full")
    assert roomy.peak_bytes is not None
    assert roomy.microbatches == 1
    tight = row(roomy.peak_bytes - 1)
    assert (tight.microbatches, tight.fits) == (2, True)
    assert row(1000).why == "it fits in no number of micro-batches"


def test_on_one_device_the_baselines_are_ways_to_checkpoint() -> None:
    program, cluster = gpt(), load_cluster("local:1")
    kept, selective, full = baselines(program, cluster, memory_bytes=1 << 30)
    assert [kept.name, selective.name, full.name] == [
        "no checkpointing",
        "selective checkpointing",
        "full checkpointing",
    ]
    for one, pin in ((kept, "keep"), (full, "full")):
        alone = make_plan(program, cluster, pins=(f"recompute={pin}",), memory_bytes=1 << 30)
        assert (one.step_s, one.peak_bytes) == (alone.predicted.step_s, alone.predicted.peak_bytes)
    assert (kept.step_s or 0) < (full.step_s or 0)
    assert (kept.peak_bytes or 0) > (full.peak_bytes or 0)


@pytest.mark.parametrize("cluster", ["local:1", "local:2"])
def test_recipes_that_there_is_no_time_for_are_named(cluster: str) -> None:
    program = gpt()
    found, whole = (baselines(program, load_cluster(cluster), may_go_on=go) for go in (lambda: False, lambda: True))
    assert [one.name for one in found] == [one.name for one in whole]
    for late, one in zip(found, whole, strict=True):
        assert late.step_s is None
        assert late.why in ("", one.why)
        assert late.refusal == (one.refusal if late.why else "not priced: the table's time is used up")
    assert any(one.step_s and late.refusal.startswith("not priced") for late, one in zip(found, whole, strict=True))


def test_storage_can_be_pinned_by_name() -> None:
    program = capture(*small_model("llama"))
    plan = make_plan(program, load_cluster("local:2"), pins=("layers.*.up.weight=S(1)",))
    stored = {name: entry.storage for name, entry in plan.parameters.items() if name.endswith(".up.weight")}
    assert stored == {"layers.0.up.weight": "[S(1)]", "layers.1.up.weight": "[S(1)]"}


@pytest.mark.parametrize("name", ["a=b", "tp=a", "pp=2", "recompute=x"])
def test_a_parameter_whose_name_has_an_equals_sign(name: str) -> None:
    """A pin is parted at its last `=`."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.ones(4, 4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ getattr(self, name)).square().mean()

    plan = make_plan(capture(Named(), (torch.ones(8, 4),)), load_cluster("local:2"), pins=("dp=2", f"{name}=S(1)"))
    assert plan.parameters[name].storage == "[S(1)]"
    assert Plan.from_json(plan.to_json()) == plan
    assert changed_pins(plan.pins, [f"{name}="]) == ("dp=2",)


def test_two_pins_may_say_the_same_of_a_parameter() -> None:
    plan = make_plan(gpt(), load_cluster("local:2"), pins=("*.up.weight=S(0)", "layers.0.up.weight=[S(0)]"))
    assert plan.parameters["layers.0.up.weight"].storage == "[S(0)]"


def test_a_batch_that_does_not_divide_is_refused_not_replicated() -> None:
    program = gpt()
    with pytest.raises(PlanError, match=r"dp=2 with a global batch of 7"):
        make_plan(program.at_batch(7), load_cluster("local:2"), pins=("dp=2",))


@pytest.mark.full
def test_a_model_with_many_values_alive_at_once_is_planned() -> None:
    from meshwright.models.reference import parse_reference
    from meshwright.planner.space.long_lived import most_alive

    program = capture(*parse_reference("unet?width=16").meta(8))
    assert most_alive(program) > 4
    plan = make_plan(program, load_cluster("local:2"), pins=("dp=2",))
    assert all("S(0)" in choice.outputs[0] for choice in plan.choices[:-1]), "every skip is split over samples"


def test_sequence_parallel_leaves_other_axes_to_the_samples() -> None:
    """sp= speaks of tensor-parallel axes alone: a stricter pin is never faster."""
    model = parse_reference("gpt?layers=2&hidden=1024&heads=8&ffn=4096&vocab=512&seq=1024")
    program, cluster = capture(*model.meta(16)), load_cluster("h100:4")
    free, pinned = (
        make_plan(program, cluster, pins=("tp=2", "sp=on", "zero=0", "pp=1", "microbatch=1", *more))
        for more in ((), ("dp=2",))
    )
    assert free.predicted.step_s <= pinned.predicted.step_s * 1.005
    assert {axis.name: axis.size for axis in free.mesh.axes} == {"dp": 2, "tp": 2}
