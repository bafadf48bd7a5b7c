"""Optimizer state on the host where memory binds: taken where it is the fastest, left where it is not asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from captures import capture
from small_models import small_model

import meshwright as mw
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cost.host_link import Copies, copies_of, is_assumed
from meshwright.errors import PlanError
from meshwright.explain.recommend import notes
from meshwright.models.gpt import GPT
from meshwright.models.reference import parse_reference
from meshwright.planner.memory import offload as offloading
from meshwright.planner.memory.offload import offloaded_names
from meshwright.planner.plan import make_plan
from meshwright.price import hosted

AUTO = ("offload=auto",)
GIVEN = (AUTO, ("offload=optimizer",))
OFFLOADED = ("weights", "auto")
QUICK, SLOW = Copies(1e12, 1e13), Copies(1e3, 1e13)


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*small_model("gpt"))


@pytest.fixture
def linked() -> Iterator[Callable[[Copies], None]]:
    """`linked(copies)`: as if every device had this link to its host. Prices that were worked out so go with it."""
    with pytest.MonkeyPatch.context() as patched:

        def link(copies: Copies) -> None:
            for module, name in ((hosted, "state_copies"), (offloading, "state_copies"), (offloading, "copies_of")):
                patched.setattr(module, name, lambda device: copies)
            mw.clear_caches()

        yield link
    mw.clear_caches()


@pytest.mark.parametrize("share", [0.75, 0.9])
def test_a_quick_link_is_taken_where_memory_binds(
    program: Program, share: float, linked: Callable[[Copies], None]
) -> None:
    cluster = load_cluster("local:1")
    roomy = make_plan(program, cluster)
    limit = int(roomy.predicted.peak_bytes * share)
    linked(QUICK)
    roomy = make_plan(program, cluster, pins=AUTO)
    assert not any(entry.offload for entry in roomy.parameters.values()), "memory does not bind"
    plan = make_plan(program, cluster, memory_bytes=limit, pins=AUTO)
    assert any(entry.offload for entry in plan.parameters.values())
    assert "on the host" in str(plan)
    assert plan.predicted.peak_bytes <= limit
    assert plan.pins == AUTO
    pinned = make_plan(program, cluster, memory_bytes=limit) if share > 0.8 else None
    assert pinned is None or plan.predicted.step_s < pinned.predicted.step_s
    assert pinned is None or not any(entry.offload for entry in pinned.parameters.values())


def test_methods_on_one_device_have_the_host_beside_them_or_say_no(
    program: Program, linked: Callable[[Copies], None]
) -> None:
    cluster = load_cluster("local:1")
    limit = int(make_plan(program, cluster, pins=("recompute=flat",)).predicted.peak_bytes * 0.75)
    linked(QUICK)
    plan = make_plan(program, cluster, memory_bytes=limit, pins=("recompute=flat", *AUTO))
    assert any(entry.offload for entry in plan.parameters.values())
    with pytest.raises(PlanError, match=r"offload=auto with recompute=rotor.*\n.*auto, flat, keep"):
        make_plan(program, cluster, pins=("recompute=rotor", *AUTO))


def test_a_slow_link_is_left_alone(program: Program, linked: Callable[[Copies], None]) -> None:
    cluster = load_cluster("local:1")
    limit = int(make_plan(program, cluster).predicted.peak_bytes * 0.9)
    before = make_plan(program, cluster, memory_bytes=limit)
    linked(SLOW)
    plan = make_plan(program, cluster, memory_bytes=limit, pins=AUTO)
    assert not any(entry.offload for entry in plan.parameters.values())
    assert plan.predicted.step_s == before.predicted.step_s


def test_several_devices_where_nothing_else_fits(program: Program, linked: Callable[[Copies], None]) -> None:
    cluster, pins = load_cluster("local:2"), ("dp=2", "zero=3", "recompute=keep")
    plan = make_plan(program, cluster, pins=pins)
    limit = plan.predicted.peak_bytes - plan.predicted.static_bytes // 3
    linked(QUICK)
    found = make_plan(program, cluster, pins=(*pins, *AUTO), memory_bytes=limit)
    assert {entry.offload for entry in found.parameters.values()} == {"optimizer"}
    assert found.predicted.peak_bytes <= limit
    assert found.pins == (*pins, *AUTO)
    with pytest.raises(PlanError):
        make_plan(program, cluster, pins=pins, memory_bytes=limit)


def test_an_unmeasured_link_is_refused(program: Program) -> None:
    with pytest.raises(PlanError, match=r"optimizer state or weights on the host of a .*\n.*measured host_link"):
        make_plan(program, load_cluster("mi300x:1"), pins=("offload=optimizer",))


def test_the_link_of_a_known_bus_is_assumed_and_said(program: Program) -> None:
    """Optimizer state of an H100 can be planned from a laptop; activations go where the link was measured alone."""
    device = load_cluster("h100:1").devices[0]
    assert is_assumed(device)
    assert copies_of(device) is None
    assert not is_assumed(load_cluster("h200:1").devices[0])
    plan = make_plan(program, load_cluster("h100:1"), pins=("offload=optimizer",))
    assert {entry.offload for entry in plan.parameters.values()} == {"optimizer"}
    assert any("priced at 55 GB/s, assumed of its bus" in note for note in notes(plan))
    far = plan.with_prediction(gap=0.5)
    nothing = [any("a step that copies nothing" in note for note in notes(replace(far, pins=pins))) for pins in GIVEN]
    assert nothing == [True, False], "the bound of a plan with a pinned offload has its copies"


def test_words_are_checked(program: Program) -> None:
    for text in ("offload=all", "offload=optimizer:2", "offload=none:0.5", "offload=optimizer:x"):
        with pytest.raises(PlanError, match=r"offload=none, auto, optimizer, weights or optimizer:0\.5"):
            make_plan(program, load_cluster("local:1"), pins=(text,))
    with pytest.raises(PlanError, match="one offload"):
        make_plan(program, load_cluster("local:1"), pins=("offload=optimizer", "offload=weights"))


def test_fractions_are_of_bytes_and_alike_in_every_layer(program: Program) -> None:
    sizes = {one.name: one.type.itemsize * _count(one.type.sizes) for one in program.parameters}
    layers = [one for one in program.segments if sum(other.graph == one.graph for other in program.segments) > 1]
    for fraction in (0.25, 0.5, 0.75):
        names = offloaded_names(program, fraction)
        assert names is not None
        assert sum(sizes[name] for name in names) == pytest.approx(fraction * sum(sizes.values()), rel=0.5)
        places = [tuple(name in names for name in one.params) for one in layers if one.graph == layers[0].graph]
        assert len(set(places)) == 1
    assert offloaded_names(program, 1.0) is None


def _count(sizes: tuple[int, ...]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found


@pytest.mark.parametrize("pin", ["offload=auto", "offload=optimizer"])
def test_a_host_link_that_was_not_measured_is_refused(program: Program, pin: str) -> None:
    with pytest.raises(PlanError, match=r"host of a GH200(.|\n)*measured host_link"):
        make_plan(program, load_cluster("gh200:1"), pins=(pin,))


@pytest.mark.parametrize(
    ("model", "cluster", "pins"),
    [
        ("gpt", "h100:1", ()),
        ("narrow", "4090:2", ("dp=2", "microbatch=1")),
        pytest.param("gpt", "4090:2", (), marks=pytest.mark.full),
    ],
)
def test_what_a_refusal_names_is_enough_with_the_host(model: str, cluster: str, pins: tuple[str, ...]) -> None:
    """With weights and optimizer state on the host far less is enough than without."""
    program, devices, named = capture(*small_model(model)), load_cluster(cluster), []
    for more in (AUTO, ()):
        with pytest.raises(PlanError) as caught:
            make_plan(program, devices, memory_bytes=1000, pins=(*pins, *more))
        named.append(int(caught.value.expected.split(" bytes")[0].replace(",", "")))
    assert named[0] < named[1]
    assert make_plan(program, devices, memory_bytes=named[0], pins=(*pins, *AUTO))


def test_a_plan_with_weights_on_the_host_is_within_its_limit() -> None:
    """The clock counts more bytes there than the search: weights that are fetched ahead."""
    program, cluster = capture(*parse_reference("mlp").meta(8), precision="mixed"), load_cluster("h100:2")
    pins = ("offload=weights", "dp=2")
    plan = make_plan(program, cluster, memory_bytes=20_000_000, precision="mixed", pins=pins)
    assert plan.predicted.peak_bytes <= 20_000_000


def test_where_only_optimizer_state_lies_there_a_refusal_names_auto(program: Program) -> None:
    with pytest.raises(PlanError, match="put weights on the host too \\(--pin offload=auto\\)"):
        make_plan(program, load_cluster("h100:1"), memory_bytes=1000, pins=("offload=optimizer",))


def test_auto_finds_what_all_weights_on_the_host_make_possible() -> None:
    """Of a model whose embedding is most of it, within what a plan with all weights there takes."""
    batch = {name: torch.randint(0, 20000, (2, 64)) for name in ("tokens", "targets")}
    model = GPT(layers=2, hidden=128, heads=4, ffn=256, vocab=20000, seq=64, tied=False)
    program, cluster = capture(model, batch), load_cluster("4090:1")
    peak = make_plan(program, cluster, pins=("offload=weights",)).predicted.peak_bytes
    limit = int(1.15 * peak)
    pinned, found = (make_plan(program, cluster, memory_bytes=limit, pins=(f"offload={one}",)) for one in OFFLOADED)
    assert found.predicted.peak_bytes <= peak
    assert found.predicted.step_s <= pinned.predicted.step_s * (1 + 1e-9)
