from __future__ import annotations

from collections.abc import Iterator

import captures
import pytest
import torch

# The models are tiny: threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def captured_anew() -> Iterator[None]:
    """What these tests are about."""
    with captures.fresh():
        yield
