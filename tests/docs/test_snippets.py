"""Python that README and the docs show runs as it stands, given what the text around it speaks of."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from processes import GlooPool
from torch import nn

import meshwright as mw
from meshwright.plan import Choice, FrontierPoint

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


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


def after(page: str, *numbers: int) -> dict[str, Any]:
    """What earlier blocks of the page have made."""
    found = small()
    for number in numbers:
        exec(compile(blocks(page)[number], page, "exec"), found)
    return found


def with_points() -> dict[str, Any]:
    point = FrontierPoint(Choice(0, (), (), {}), 1e-3, 1e-3, 1e-3, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0)
    return after("docs/pipelines.md", 0) | {"points": [point] * 6}


def with_tables() -> dict[str, Any]:
    found = after("docs/select.md", 0)
    problem = found["build"].build()
    return found | {"problem": problem, "kept": [0], "costs": problem.costs, "options": (0,)}


RUN: dict[tuple[str, int], Callable[[], dict[str, Any]]] = {
    ("README.md", 0): small,
    ("docs/cluster.md", 0): small,
    ("docs/design.md", 0): with_a_plan,
    ("docs/memory.md", 0): with_a_loss,
    ("docs/pipelines.md", 0): small,
    ("docs/pipelines.md", 1): lambda: after("docs/pipelines.md", 0),
    ("docs/pipelines.md", 2): with_points,
    ("docs/rules.md", 0): with_an_op,
    ("docs/running.md", 0): with_a_plan,
    ("docs/running.md", 3): with_a_trainer,
    ("docs/select.md", 0): small,
    ("docs/select.md", 1): with_tables,
    ("docs/tutorial.md", 0): small,
}
"""Pages and the numbers of their blocks."""
ON_RANKS = {("docs/cluster.md", 1): 4, ("docs/pipelines.md", 3): 2}
"""Blocks for torchrun, and on how many ranks they are run here."""
ELSEWHERE = {
    ("README.md", 1): "tests/runtime/test_outputs.py",
    ("docs/hf_trainer.md", 0): "tests/test_hf.py",
    ("docs/hf_trainer.md", 1): "tests/test_hf.py",
    ("docs/running.md", 1): "tests/runtime/test_outputs.py",
    ("docs/running.md", 2): "tests/runtime/test_code_runs.py",
    ("docs/troubleshooting.md", 0): "tests/docs/test_troubleshooting.py",
}
"""Blocks that other tests run."""


def test_every_block_is_run() -> None:
    shown = {(page, number) for page in map(name_of, PAGES) for number in range(len(blocks(page)))}
    assert shown == {*RUN, *ON_RANKS, *ELSEWHERE}


@pytest.mark.parametrize(("page", "number"), RUN, ids=lambda one: str(one))
def test_it_runs(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page)[number], page, "exec"), RUN[page, number]())


def on_a_rank(rank: int, text: str) -> Any:
    """The test's ranks have met already."""
    batch, loss = (torch.randn(16, 64),), lambda y, x: (y - x).square().mean()
    found = small() | {"batch": batch, "loss": loss}
    with mock.patch.object(torch.distributed, "init_process_group"):
        exec(compile(text, "block", "exec"), found)
    if "trainer" in found:
        return found["trainer"].step(batch, global_batch=True).item()
    return found["whole"].tolist()


@pytest.mark.parametrize(("page", "number"), ON_RANKS, ids=lambda one: str(one))
def test_it_runs_on_ranks(page: str, number: int, ranks: Callable[[int], GlooPool]) -> None:
    first, *others = ranks(ON_RANKS[page, number]).run(on_a_rank, blocks(page)[number])
    assert others == [first] * len(others)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_of_it_is_python(page: Path) -> None:
    for text in blocks(name_of(page)):
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
