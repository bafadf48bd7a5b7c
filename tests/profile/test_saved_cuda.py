"""The table of what ops keep on a GPU is what autograd keeps there; says so when there is no GPU."""

from __future__ import annotations

import pytest
import torch
from cuda_cases import CASES, outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


@pytest.mark.parametrize("name", CASES)
def test_an_op_keeps_on_the_gpu_what_the_table_says(name: str) -> None:
    found = outcome(name)
    assert found.table_named, f"other operands or results than named, in {found.node}"
    assert found.table_kept_bytes == pytest.approx(found.kept_bytes, abs=64)  # a few numbers of random state


@pytest.mark.parametrize("name", [name for name in CASES if "conv" not in name and "odd" not in name])
def test_backward_works_in_the_bytes_the_table_says(name: str) -> None:
    found = outcome(name)
    slack = max(0.05 * found.backward_working_bytes, 5 << 20)
    assert found.table_backward_working_bytes == pytest.approx(found.backward_working_bytes, abs=slack)
