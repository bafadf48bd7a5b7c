"""Calibration: what it writes is a profile that pricing can use; its samples do what they are counted as."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch

from meshwright.cli import main
from meshwright.cluster.calibrate import measure as calibration
from meshwright.cluster.calibrate.clock import CpuClock
from meshwright.cluster.calibrate.command import profile_text, sources
from meshwright.cluster.calibrate.grids import Rates, both_sides
from meshwright.cluster.calibrate.host import TAPED, pair_calls
from meshwright.cluster.calibrate.moves import moves
from meshwright.cluster.calibrate.pace import Pace
from meshwright.cluster.calibrate.samples import GPU_ONLY, HOST, KERNELS, ROWS, row_sample
from meshwright.cluster.calibrate.scatters import (
    VARIANTS,
    attention_points,
    attention_sample,
    convolution_calls,
    convolution_points,
)
from meshwright.cluster.calibrate.tape import tape_figures
from meshwright.cluster.profile_load import check_profile, device_of, profile_of, read_profile

CPU = torch.device("cpu")
EFFORTS = calibration.efforts()
TINY = replace(
    EFFORTS["cpu"],
    numels=(1 << 10, 1 << 12),
    rows=(("units", (16, 64)), ("width", (64, 256))),
    matmul=(16, 32),
    biased=(16, 32),
    spread=replace(EFFORTS["cpu"].spread, attention=3, variants=2, plain=3, window=8, most_elements=1 << 14),
    peak_size=64,
    aligned_size=64,
    copy_bytes=1 << 16,
    optimizer_bytes=(1 << 12, 1 << 14),
)


@pytest.mark.parametrize("name", [*KERNELS, *HOST])
def test_samples_run_forward_and_backward(name: str) -> None:
    sample = {**KERNELS, **HOST}[name](1 << 12, torch.float32, CPU)
    result = sample.call()
    assert sample.work > 0
    if sample.wrt:
        torch.autograd.grad(result, sample.wrt, torch.ones_like(result))


@pytest.mark.parametrize("kernel", ROWS)
def test_rows_have_the_elements_they_are_counted_with(kernel: str) -> None:
    for units, width in ((16, 64), (64, 256), (16, 8192)):
        sample = row_sample(kernel, units, width, torch.float32, CPU)
        assert sample.work == 4 * units * width
        assert sample.call().numel() in (1, units, units * width)


@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_samples_have_the_sizes_asked_for(variant: str) -> None:
    rates = Rates(CPU, CpuClock(1e-6, 1), {}, 1.0)
    sample = attention_sample(rates, variant, torch.float32, 16, 32, 16)
    assert sample.call().shape == (2, 8, 32, 16)
    assert [side for side, _ in both_sides(rates.clock, sample)] == ["forward", "backward"]


@pytest.mark.parametrize("effort", EFFORTS.values(), ids=EFFORTS)
def test_scattered_sizes_are_many_and_within_bounds(effort: calibration.Effort) -> None:
    spread, most = effort.spread, effort.most_flops["float32"]
    found = attention_points(spread, spread.attention, most)
    assert len(found) == len(set(found)) == spread.attention
    assert all(10 * heads * seq * seq * width <= most for heads, seq, width in found)
    windows = convolution_points(spread, "window", spread.window, most)
    assert len(windows) == spread.window
    assert len({(window, stride) for *_, window, stride in windows}) == 9
    assert all((window, stride) == ((1, 1), 1) for *_, window, stride in convolution_points(spread, "plain", 9, most))


def test_a_convolution_sample_sweeps_what_it_is_counted_with() -> None:
    rates = Rates(CPU, CpuClock(1e-6, 1), {}, 1.0)
    for window, stride, positions in (((3, 3), 1, 64), ((3, 3), 2, 16), ((2, 2), 2, 16), ((1, 7), 1, 64)):
        calls, pixels = convolution_calls(rates, torch.float32, (2, 8, 4, 8, window, stride))
        assert pixels == positions
        assert [side for side, _ in calls] == ["forward", "input", "weight"]
        for _, run in calls:
            run()


def test_a_pair_gives_what_autograd_gives() -> None:
    samples = [HOST["linear"](64, torch.float32, CPU) for _ in range(2)]
    forward, both = pair_calls(samples)
    with torch.no_grad():
        plain, joint = forward(), both()
    for sample, result in zip(samples, plain, strict=True):
        torch.testing.assert_close(result, sample.call().detach())
    results = [sample.call() for sample in samples]
    wrt = [tensor for sample in samples for tensor in sample.wrt]
    for mine, theirs in zip(
        joint[2:], torch.autograd.grad(results, wrt, list(map(torch.ones_like, results))), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_host_figures_do_not_depend_on_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is twice as slow for a while gives the same figures, at its usual pace."""
    pace = Pace(CPU, layers=1)
    speeds = iter([1.0, 1.0, 2.0, 2.0, 1.0, 1.0])
    monkeypatch.setattr(pace, "now_s", lambda: next(speeds))
    slow = iter([3.0, 5.0, 6.0, 4.0, 3.0])
    assert pace.rounds(lambda: [next(slow)], 3) == [[3.0]] * 3  # what was measured while the pace changed is left out


def test_a_pace_that_never_stays_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(CPU, layers=1)
    speeds = cycle([1.0, 2.0])
    monkeypatch.setattr(pace, "now_s", lambda: next(speeds))
    assert pace.paced(lambda: [4.5], 2) == [3.0]


def test_a_profile_comes_out_that_prices_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "efforts", lambda: {"cpu": TINY})
    monkeypatch.setattr(calibration, "clock_for", lambda device: CpuClock(1e-6, 1))
    found = calibration.calibrate(CPU)
    found["sources"] = sources(found)
    check_profile(found, "new")
    (tmp_path / "new.json").write_text(profile_text(found))
    assert read_profile(str(tmp_path / "new.json")) == json.loads(json.dumps(found))
    device = device_of(str(tmp_path / "new.json"))
    device.verify()
    # Its own tables, unscaled: a measured point comes back as measured.
    n_bytes, seconds = found["kernels"]["add.forward"]["float32"][0]
    assert profile_of(device).kernel_s("add.forward", "float32", n_bytes) == pytest.approx(seconds)
    assert set(found["kernels"]) == set(read_profile("cpu")["kernels"])
    assert set(found["grids"]) == set(read_profile("cpu")["grids"])
    assert set(found["scatters"]) == set(read_profile("cpu")["scatters"])


def test_a_gpu_profile_has_what_a_cpu_profile_has_and_the_host() -> None:
    gpu, cpu = read_profile("H200-SXM-141GB"), read_profile("cpu")
    both = {f"{name}.{side}" for name in KERNELS for side in ("forward", "backward")}
    both -= {"add.backward", "bias.backward", "fill.backward", "sort.backward"}
    assert set(gpu["kernels"]) == both
    assert set(cpu["kernels"]) == {kernel for kernel in both if kernel.partition(".")[0] not in GPU_ONLY}
    assert set(gpu["grids"]) == set(cpu["grids"])
    assert set(gpu["scatters"]) == set(cpu["scatters"])
    taped = {move.name for part in moves(CPU, torch.float32) for move in part} - {"view_and_sum"} | {"summed"}
    assert set(gpu["host"]["float32"]) >= taped | {"start", "eager"}
    assert set(gpu["pairs"]["float32"]) >= {*KERNELS, *HOST, "eager"} - TAPED - GPU_ONLY
    assert not cpu["host"]


def test_every_op_of_a_tape_is_timed_both_ways() -> None:
    """Figures come out for all, and an op that does more takes longer than a view."""
    pace = Pace(CPU, layers=1)
    pace.now_s = lambda: 1.0  # type: ignore[method-assign]
    found = tape_figures(CPU, torch.float32, pace, shuffles=1, rounds=1)
    still = {"add", "fill", "sort", "module", "summed"}
    assert all(forward > 0 and backward > 0 for name, (forward, backward) in found.items() if name not in still)
    assert all(found[name][1] == 0 for name in still - {"summed"})
    assert found["linear"][0] > found["view"][0]
    assert found["grouped_mm_16"][0] > found["view"][0]


def test_bad_arguments_are_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "-o", "profile.txt"]) == 2
    assert "ends in .json" in capsys.readouterr().err
    assert main(["calibrate", "-o", str(tmp_path / "absent" / "p.json")]) == 2
    assert "no folder" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["calibrate", "--device", "cuda"]) == 2
        assert "sees no GPU" in capsys.readouterr().err
