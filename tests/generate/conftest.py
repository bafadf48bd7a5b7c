from __future__ import annotations

from collections.abc import Iterator

import pytest
import traces

TRACING = ("test_cut", "test_cut_sharded", "test_pair", "test_rows", "test_expert_rows", "test_strides", "test_writes")
"""Tests of traced graphs themselves."""


@pytest.fixture(scope="module", autouse=True)
def traced_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.module.__name__.rpartition(".")[2] not in TRACING:
        yield
        return
    with traces.fresh():
        yield
