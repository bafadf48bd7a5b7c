from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from captures import capture


@pytest.fixture(scope="session", autouse=True)
def captured_once() -> Iterator[None]:
    """What these tests are about comes after the capture, which a run makes for itself."""
    with patch("meshwright.runtime.trainer.capture", capture), patch("meshwright.solve.of_model.capture", capture):
        yield
