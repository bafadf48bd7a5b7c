from __future__ import annotations

from collections.abc import Iterator

import pytest
import traces


@pytest.fixture(scope="module", autouse=True)
def traced_anew() -> Iterator[None]:
    """What these tests are about."""
    with traces.fresh():
        yield
