"""A long run of layers is profiled by a few of them, to the same figures as by all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.capture import Program, capture
from meshwright.models.reference import parse_reference
from meshwright.profile import Profile, profile_step, step
from meshwright.profile.shorten import Shortened, shorten

DEEP = {
    "gpt": "gpt?layers=12&hidden=24&heads=4&ffn=48&vocab=32&seq=12",
    "untied": "llama?layers=11&hidden=24&heads=4&kv_heads=2&ffn=48&vocab=32&seq=12&tied=false",
    "t5": "t5?layers=9&hidden=24&heads=4&head_dim=6&ffn=48&vocab=32&seq=12&buckets=8",
    "balance losses": "moe?layers=9&hidden=24&heads=4&kv_heads=2&ffn=16&vocab=32&seq=12&experts=4&balance=0.1",
    "many weights, few values": "gpt?layers=12&hidden=64&heads=4&ffn=512&vocab=32&seq=2",
}


def whole(program: Program) -> Shortened:
    count = len(program.segments)
    return Shortened(program, tuple(range(count)), (1,) * count)


def figures(found: Profile) -> Profile:
    return replace(found, profile_seconds=0.0)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name != "gpt")) for name in DEEP])
def test_figures_are_those_of_all_segments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture(*parse_reference(DEEP[name]).meta(2))
    short = [figures(profile_step(program, device=device)) for device in ("cpu", "cuda")]
    monkeypatch.setattr(step, "shorten", whole)
    assert short == [figures(profile_step(program, device=device)) for device in ("cpu", "cuda")]


def test_a_run_is_shortened_to_a_few() -> None:
    program = capture(*parse_reference(DEEP["gpt"]).meta(2))
    found = shorten(program)
    assert len(program.segments) == 14
    assert found.weights == (1, 1, 1, 7, 1, 1, 1, 1)
    assert found.firsts == (0, 1, 2, 3, 10, 11, 12, 13)
    found.program.verify()
