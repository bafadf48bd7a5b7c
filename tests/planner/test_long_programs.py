"""Programs of very many segments: planning takes time in proportion to them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture import Program, capture
from meshwright.cluster import load_cluster
from meshwright.planner.plan import make_plan


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x.square().mean()


def longer(program: Program, count: int) -> Program:
    """With so many copies of its second layer, each with weights of its own."""
    before, copied, behind = program.segments[:1], program.segments[1], program.segments[2:]
    segments, parameters = list(before), list(program.parameters)
    inputs = copied.inputs
    for number in range(count):
        names = tuple(f"{name}.{number}" for name in copied.params)
        outputs = tuple(f"{name}.{number}" for name in copied.outputs)
        segments.append(replace(copied, name=f"copy.{number}", inputs=inputs, params=names, outputs=outputs))
        parameters += [replace(program.parameter(old), name=new) for old, new in zip(copied.params, names, strict=True)]
        inputs = outputs
    kept = [one for one in parameters if one.name not in copied.params]
    found = replace(
        program, segments=(*segments, replace(behind[0], inputs=inputs), *behind[1:]), parameters=tuple(kept)
    )
    found.verify()
    return found


def seconds(program: Program, pins: tuple[str, ...]) -> float:
    begun_s = time.process_time()
    make_plan(program, load_cluster("local:2"), pins=pins)
    return time.process_time() - begun_s


@pytest.mark.full
@pytest.mark.parametrize("pins", [("pp=1", "zero=3"), ("pp=2", "microbatches=4", "schedule=1f1b")])
def test_planning_time_grows_with_the_segments_and_no_faster(pins: tuple[str, ...]) -> None:
    program = capture(Deep(), {"x": torch.zeros(64, 16)})
    assert program.segments[1].graph == program.segments[2].graph
    seconds(program, pins)  # what is found once for all
    few, many = longer(program, 500), longer(program, 2_000)
    assert seconds(many, pins) < 7 * seconds(few, pins)  # sixteen, if every segment were compared with every other


def test_uses_and_parameters_are_found_by_name() -> None:
    program = longer(capture(Deep(), {"x": torch.zeros(64, 16)}), 3)
    for parameter in program.parameters:
        assert program.parameter(parameter.name) is parameter
        users = tuple(i for i, segment in enumerate(program.segments) if parameter.name in segment.params)
        assert program.uses_of(parameter.name) == users
    assert program.uses_of("none of these") == ()
