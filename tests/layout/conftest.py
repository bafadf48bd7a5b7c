from __future__ import annotations

from collections.abc import Callable

import pytest
from processes import GlooPool


@pytest.fixture(scope="session")
def gloo(ranks: Callable[[int], GlooPool]) -> GlooPool:
    """Six processes: enough for every mesh of these tests."""
    return ranks(6)
