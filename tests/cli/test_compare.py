"""Two plans beside each other, and their page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import meshwright as mw
from meshwright.capture import capture
from meshwright.cli import main
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan
from meshwright.report.traced import read_trace

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
    assert "DIFFERENT MODELS" not in shown
    found = mw.compare(one, other)
    assert shown.startswith(repr(found)), "the command prints what Python shows"
    plans = mw.compare(mw.Plan.load(one), mw.Plan.load(other))
    assert plans.names == ("plan 1", "plan 2")
    assert (plans.rows, plans.differs) == (found.rows, found.differs)
    assert "<td>FSDP (ZeRO-3) over 2</td>" in plans._repr_html_()
    assert main(["plan", SMALL.replace("layers=1", "layers=2"), "--cluster", "local:1", "--quiet", "-o", one]) == 0
    assert main(["compare", one, other]) == 0
    assert "these are plans of DIFFERENT MODELS" in capsys.readouterr().out
    with pytest.raises(PlanError, match=r"meshwright compare plan\.json run\.json\.gz"):
        mw.compare(one, "run.json.gz")
    with pytest.raises(PlanError, match="a list as a plan"):
        mw.compare(one, [])  # type: ignore[arg-type]
    text = Path(page).read_text()
    assert '"against":[{"name":' in text
    assert "ZeRO-3" in text


def test_a_plan_beside_a_trace_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real run under torch's profiler: every layer is measured, and the sums are the profiler's own."""
    reference, file, trace = parse_reference(SMALL), tmp_path / "plan.json", tmp_path / "trace.json.gz"
    plan = make_plan(capture(*reference.meta(4)), load_cluster("local:1"), model=str(reference))
    plan.save(file)
    torch.manual_seed(0)
    batch = {name: torch.randint(0, 128, (4, 16)) for name in plan.inputs}
    trainer = mw.parallelize(reference.build(), plan)
    trainer.step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(2):
            trainer.step(batch)
    profile.export_chrome_trace(str(trace))
    capsys.readouterr()
    assert main(["compare", str(file), str(trace)]) == 0
    shown = capsys.readouterr().out
    assert "mean of 2 recorded steps" in shown
    assert "(error unknown: no step was measured on cpu)" in shown
    measured = read_trace(trace)
    averages = {one.key: one.cpu_time_total for one in profile.key_averages()}
    layers = {index for _, index in measured.work_s}
    assert layers == set(range(len(plan.segments)))
    assert measured.step_s == pytest.approx(averages["meshwright training step"] * 1e-6 / 2, rel=0.01)
    forward = averages["meshwright forward 1 mb0"] * 1e-6 / 2
    assert measured.work_s["forward", 1] == pytest.approx(forward, rel=0.01)
    assert sum(measured.work_s.values()) <= measured.step_s


def test_what_is_no_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    assert main(["plan", SMALL, "--cluster", "local:1", "--quiet", "-o", str(file)]) == 0
    for text, said in (('{"traceEvents": []}', "has no step of a meshwright trainer"), ("no", "cannot be read")):
        (tmp_path / "t.json.gz").write_text(text)
        assert main(["compare", str(file), str(tmp_path / "t.json.gz")]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "export_chrome_trace" in error
