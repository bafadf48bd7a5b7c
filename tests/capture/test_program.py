"""verify() fails on a Program that is broken, and says where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_families import small_family

from meshwright.capture import Program, capture
from meshwright.capture.program import SegmentGraph
from meshwright.errors import VerifyError


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*small_family("gpt"))


def with_graph(program: Program, graph: SegmentGraph) -> Program:
    return replace(program, graphs=(graph, *program.graphs[1:]))


def test_a_value_must_be_defined_before_it_is_read(program: Program) -> None:
    graph = program.graphs[0]
    with pytest.raises(VerifyError, match="reads"):
        with_graph(program, replace(graph, ops=graph.ops[1:])).verify()


def test_a_value_is_defined_once(program: Program) -> None:
    graph = program.graphs[0]
    with pytest.raises(VerifyError, match="defined twice"):
        with_graph(program, replace(graph, ops=(graph.ops[0], *graph.ops))).verify()


def test_an_output_must_exist(program: Program) -> None:
    with pytest.raises(VerifyError, match="returns 'nowhere'"):
        with_graph(program, replace(program.graphs[0], outputs=("nowhere",))).verify()


def test_only_buffers_are_updated(program: Program) -> None:
    graph = program.graphs[0]
    with pytest.raises(VerifyError, match="updates 'x'"):
        with_graph(program, replace(graph, updates=(("x", graph.outputs[0]),))).verify()


@pytest.mark.parametrize("kind", ["inputs", "shared_values", "params", "outputs"])
def test_a_segment_binds_what_its_graph_has(program: Program, kind: str) -> None:
    segments = list(program.segments)
    index = next(i for i, segment in enumerate(segments) if getattr(segment, kind))
    segments[index] = replace(segments[index], **{kind: ()})
    with pytest.raises(VerifyError, match=f"binds 0 {kind}"):
        replace(program, segments=tuple(segments)).verify()


def test_a_segment_reads_what_came_before(program: Program) -> None:
    with pytest.raises(VerifyError, match="a value of an earlier segment"):
        replace(program, segments=program.segments[1:]).verify()


def test_the_last_segment_returns_the_loss(program: Program) -> None:
    with pytest.raises(VerifyError, match="the loss"):
        replace(program, loss="another").verify()


def test_a_parameter_must_be_the_programs(program: Program) -> None:
    with pytest.raises(VerifyError, match="a parameter or buffer of the Program"):
        replace(program, parameters=program.parameters[1:]).verify()


def test_tied_parameters_have_one_identity(program: Program) -> None:
    tied = program.parameter("tokens.weight")
    assert tied.aliases == ("head.weight",)
    assert program.uses_of("tokens.weight") == (0, len(program.segments) - 1)


def test_the_fingerprint_tells_models_apart(program: Program) -> None:
    assert program.fingerprint() == capture(*small_family("gpt", 7)).fingerprint()
    assert program.fingerprint() != capture(*small_family("llama")).fingerprint()
