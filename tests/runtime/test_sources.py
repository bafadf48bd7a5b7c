"""An index of weights is read whole or refused in one message, and names files of its own folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import RunError
from meshwright.runtime.weights.sources import SafetensorsFiles


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"weight_map": {"w": "../secret.safetensors"}}', "names the file '../secret"),
        (b'{"weight_map": {"w": "/etc/passwd"}}', "names the file '/etc/passwd'"),
        (b'{"weight_map": {"w": ".."}}', "names the file '..'"),
        (b'{"weight_map": ["w"]}', "cannot be read"),
        (b'{"weights": {}}', "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_indices_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(RunError, match=message):
        SafetensorsFiles(tmp_path)
