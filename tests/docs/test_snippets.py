"""Python that README and the docs show runs as it stands, given what the text around it speaks of."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import meshwright as mw

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def small() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"torch": torch, "nn": nn, "mw": mw}


def with_a_loss() -> dict[str, Any]:
    """A model that returns its loss, and a batch."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.layers(x) - x).square().mean()

    return small() | {"model": Model(), "batch": (torch.randn(4, 8),)}


def with_a_plan() -> dict[str, Any]:
    found = with_a_loss()
    plan = mw.plan(found["model"], found["batch"])
    plan.save("plan.json")
    return found | {"dataset": [(torch.randn(8),) for _ in range(8)]}


def with_a_trainer() -> dict[str, Any]:
    found = with_a_loss()
    trainer = mw.parallelize(found["model"], mw.plan(found["model"], found["batch"]))
    return found | {"trainer": trainer, "batches": [found["batch"]] * 3, "rank": 0}


def with_an_op() -> dict[str, Any]:
    found = with_a_loss()
    graph = mw.capture(found["model"], found["batch"]).graphs[0].at(4)
    return found | {"graph": graph, "op": next(op for op in graph.ops if "linear" in op.target)}


RUN: dict[tuple[str, int], Callable[[], dict[str, Any]]] = {
    ("README.md", 0): small,
    ("docs/cluster.md", 0): small,
    ("docs/memory.md", 0): with_a_loss,
    ("docs/pipelines.md", 0): small,
    ("docs/rules.md", 0): with_an_op,
    ("docs/running.md", 0): with_a_plan,
    ("docs/running.md", 2): with_a_trainer,
    ("docs/select.md", 0): small,
    ("docs/tutorial.md", 0): small,
}
"""Pages and the numbers of their blocks. README's second is run by tests/runtime/test_outputs.py."""


@pytest.mark.parametrize(("page", "number"), RUN, ids=lambda one: str(one))
def test_it_runs(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page)[number], page, "exec"), RUN[page, number]())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_of_it_is_python(page: Path) -> None:
    for text in blocks(str(page.relative_to(ROOT))):
        said = [line[4:] for line in text.splitlines() if line.startswith((">>> ", "... "))]
        compile("\n".join(said) if said else text, page.name, "exec")


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"


def test_the_site_has_every_page_and_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["build_site.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / "build_site.py"), run_name="__main__")
    made = {path.stem: path.read_text() for path in tmp_path.glob("*.html")}
    assert set(made) == {"api", *(page.stem for page in (ROOT / "docs").glob("*.md"))}
    assert "mw.parallelize(" in made["api"]
    for name, text in made.items():
        for target in re.findall(r'href="([\w-]+)\.html', text):
            assert target in made, f"{name}: {target}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["index.md"]
