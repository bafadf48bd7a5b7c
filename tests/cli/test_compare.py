"""Two plans beside each other, and their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.cli import main

SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"


def test_two_plans_beside_each_other_and_on_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, page = (str(tmp_path / name) for name in ("a.json", "b.json", "page.html"))
    for pin, path in (("zero=0", one), ("zero=3", other)):
        words = ["plan", SMALL, "--cluster", "local:2", "--pin", "dp=2", "--pin", pin, "--pin", "pp=1", "-o", path]
        assert main([*words, "--report", page]) == 0
    assert "page written to" in capsys.readouterr().out
    assert '"search":[[' in Path(page).read_text()
    assert main(["compare", one, other, "--report", page]) == 0
    shown = capsys.readouterr().out
    assert "data parallel (DDP) over 2" in shown
    assert "FSDP (ZeRO-3) over 2" in shown
    text = Path(page).read_text()
    assert '"against":[{"name":' in text
    assert "ZeRO-3" in text
