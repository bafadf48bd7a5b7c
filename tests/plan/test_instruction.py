from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import PlanError, VerifyError
from meshwright.plan.instruction import PER_MICROBATCH, PER_STEP, TRANSFERS, Instruction, from_text, to_text, verify

NUMBER = st.integers(0, 10_000)
INSTRUCTIONS = st.one_of(
    st.builds(Instruction, st.sampled_from(PER_MICROBATCH), NUMBER, NUMBER),
    st.builds(Instruction, st.sampled_from(PER_STEP), NUMBER),
    st.builds(Instruction, st.sampled_from(TRANSFERS), NUMBER, NUMBER, NUMBER),
    st.just(Instruction("step")),
)


@given(st.lists(INSTRUCTIONS))
@settings(deadline=None)
def test_text_reads_back(instructions: list[Instruction]) -> None:
    assert from_text(to_text(instructions)) == tuple(instructions)


@pytest.mark.parametrize(
    "line", ["jump 3", "forward", "forward 3", "step 1", "gather 1 mb0", "send 1 mb0", "forward x mb0"]
)
def test_nonsense_is_refused(line: str) -> None:
    with pytest.raises((PlanError, VerifyError), match=r"expected:"):
        Instruction.parse(line)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("forward 0 mb0", "one backward of it"),
        ("backward 0 mb0\nforward 0 mb0", "before its forward"),
        ("forward 0 mb0\nbackward 0 mb0\nbackward 0 mb0", "stands twice"),
        ("forward 0 mb0\nreduce 0\nbackward 0 mb0", "after `reduce 0`"),
        ("forward 0 mb0\nbackward 0 mb0\nbackward_input 0 mb0\nbackward_weight 0 mb0", "one backward of it"),
        ("forward 0 mb0\nbackward_input 0 mb0", "one backward of it"),
        ("forward 0 mb0\nbackward 0 mb0\nbackward_input 0 mb0", "one backward of it"),
        ("forward 0 mb0\nbackward_weight 0 mb0\nbackward_input 0 mb0", "before its input half"),
        ("forward 0 mb0\nbackward 0 mb0\nrecompute 0 mb0", "after its backward"),
        ("recompute 0 mb0\nforward 0 mb0", "before its forward"),
    ],
)
def test_verify_finds_the_fault(text: str, fault: str) -> None:
    with pytest.raises(VerifyError, match=fault):
        verify(from_text(text))
