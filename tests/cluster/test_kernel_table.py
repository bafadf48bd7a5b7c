"""Measured kernels: what profiles give to prices for shapes with published times, and what calibration keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from meshwright.cluster.expert_loads import busiest_rank
from meshwright.cluster.kernel_table import (
    KERNELS,
    PARTS,
    MeasuredKernels,
    Rates,
    in_waves,
    kernel_table,
    measured_kernels,
)
from meshwright.cluster.profile_load import device_of, profile_of, shipped
from meshwright.cluster.scatter import Scatter
from meshwright.errors import ClusterError

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import kernels


def test_products_take_what_was_measured() -> None:
    """A few rows of the published table (ai-dynamo/aiconfigurator 095f58a), in microseconds."""
    for name, m, n, k, time_us in (("B200-SXM", 4096, 12288, 10240, 629.7), ("GB200", 4097, 3584, 3584, 60.3)):
        assert profile_of(device_of(name)).matmul_s("nt", "bfloat16", 2, m, n, k) == pytest.approx(
            time_us * 1e-6, rel=0.1
        )


ASKED = """
from meshwright.cluster.profile_load import device_of, profile_of
profile = profile_of(device_of("H100-SXM-80GB"))
sizes = range(640, 9000, 811)
print([profile.matmul_s("nt", "bfloat16", 2, m, n, n + 512) for m in sizes for n in sizes])
"""


def test_prices_do_not_depend_on_the_number_of_threads() -> None:
    """Equations are solved to other last digits by several threads."""
    each = (os.environ | {"OPENBLAS_NUM_THREADS": threads} for threads in ("1", "2"))
    one, two = (subprocess.check_output([sys.executable, "-c", ASKED], env=env, text=True) for env in each)
    assert one == two


def test_every_layout_and_side_is_priced_from_the_measured_one() -> None:
    profile = profile_of(device_of("A100-SXM-80GB"))
    measured = profile.matmul_s("nt", "bfloat16", 2, 4096, 4096, 4096)
    for layout in ("nn", "tn", "bias"):
        assert 0.5 < profile.matmul_s(layout, "bfloat16", 2, 4096, 4096, 4096) / measured < 2
    assert profile.matmul_s("nt", "bfloat16", 2, 512, 128, 512, batch=64) > 0
    sizes = ("bfloat16", 2, 32, 4096, 4096, 128)
    forward, backward = (profile.attention_s("causal", side, *sizes) for side in ("forward", "backward"))
    assert 1.5 < backward / forward < 4
    assert profile.attention_s("plain", "forward", *sizes) > 1.2 * forward


def test_half_precision_is_float16_where_there_is_no_bfloat16() -> None:
    volta = profile_of(device_of("V100-SXM2-16GB"))
    half, brain = (volta.matmul_s("nt", dtype, 2, 8192, 8192, 8192) for dtype in ("float16", "bfloat16"))
    assert half == pytest.approx(2 * 8192**3 / (0.8 * 125e12), rel=0.1)
    assert brain > 5 * half  # done in float32
    for name in ("A100-SXM-80GB", "H100-SXM-80GB"):
        both = {profile_of(device_of(name)).matmul_s("nt", d, 2, 4096, 4096, 4096) for d in ("float16", "bfloat16")}
        assert len(both) == 1


def test_a_device_that_meshwright_was_calibrated_on_keeps_its_own_prices_but_for_narrow_types() -> None:
    device = device_of("H200-SXM-141GB")
    own, library = profile_of(device), profile_of(device, library=True)
    assert own.matmul_s("nt", "bfloat16", 2, 4096, 4096, 4096) != library.matmul_s(
        "nt", "bfloat16", 2, 4096, 4096, 4096
    )
    assert own.matmul_s("nt", "float8", 1, 8192, 8192, 8192) == library.matmul_s("nt", "float8", 1, 8192, 8192, 8192)
    assert own.mixture_s("bfloat16", 4096, 4096, 1024, 8, 128) is None
    assert library.mixture_s("bfloat16", 4096, 4096, 1024, 8, 128)
    assert own.has_own_tables


def test_every_profile_that_names_a_table_names_one_that_is_there() -> None:
    assert {"A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM", "GB200", "RTX-PRO-6000-Server"} <= set(measured_kernels())
    for name in shipped():
        assert profile_of(device_of(name)).matmul_s("nt", "bfloat16", 2, 1024, 1024, 1024) > 0
    with pytest.raises(ClusterError, match="measured kernels 'none'"):
        kernel_table("none")


BAD = """\
gpu,dtype,m,n,k,time_us
H100-SXM-80GB,bfloat16,4096,4096,4096,200
h100,fp8,4096,4096,4096,120
TPU-v9,bfloat16,4096,4096,4096,200
H100-SXM-80GB,int3,4096,4096,4096,200
A100-SXM-80GB,fp8,4096,4096,4096,200
H100-SXM-80GB,bfloat16,0,4096,4096,200
H100-SXM-80GB,bfloat16,4096,4096,4096,-1
H100-SXM-80GB,bfloat16,4096,4096,x,200
"""


def test_the_bench_lists_what_it_cannot_score_and_scores_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gemm.csv").write_text(BAD)
    (tmp_path / "moe.csv").write_text("gpu,tokens,experts\nH100-SXM-80GB,1,1\n")
    tables = [str(tmp_path / name) for name in ("gemm.csv", "moe.csv", "missing.csv")]
    monkeypatch.setattr(sys, "argv", ["kernels.py", *tables, "--json", str(tmp_path / "out.json")])
    assert kernels.main() == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["groups"]) == {"H100-SXM-80GB/gemm/bfloat16", "H100-SXM-80GB/gemm/fp8"}
    assert all(group["rows"] == 1 and group["mean_abs_error"] < 0.5 for group in found["groups"].values())
    reasons = [one["reason"] for one in found["skipped"]]
    expected = ("TPU-v9", "int3", "no unit for float8 on A100-SXM-80GB", "m is 0", "time_us is -1", "k is 'x'")
    assert len(reasons) == 8
    for text in (*expected, "without the columns hidden", "missing.csv"):
        assert any(text in reason for reason in reasons), text
    assert "left out: 8" in capsys.readouterr().out


def test_the_bench_lists_tables_and_rows_that_can_not_be(tmp_path: Path) -> None:
    head, row = "gpu,op,num_gpus,bytes,dtype,time_us", "H100-SXM-80GB,all_gather,8,1048576,half,30"
    cells = [row.replace("1048576", text) for text in ("1e308", "nan", "2.5", "caf\xe9")] + [
        row[:-2] + "1e-320",
        row + ",1",
    ]
    (tmp_path / "good.csv").write_bytes("\n".join([head, row, *cells]).encode("latin-1"))
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "wide.csv").write_bytes(f"{head}\n{row}\n".encode("utf-16"))
    skipped: list[dict[str, object]] = []
    scored = [one for name in ("good", "empty", "wide") for one in kernels.score(tmp_path / f"{name}.csv", skipped)]
    assert len(scored) == 1
    assert len(skipped) == len(cells) + 2
    assert all(one["reason"] for one in skipped)


def test_the_bench_prices_half_precision_where_there_is_no_bfloat16_and_blocks_of_float8_like_float8() -> None:
    def priced(gpu: str, dtype: str) -> float:
        row = {"gpu": gpu, "dtype": dtype, "m": "8192", "n": "8192", "k": "8192", "time_us": "1"}
        return kernels.gemm(row).predicted_s

    assert priced("v100", "fp16") == priced("V100-SXM2-16GB", "half")
    assert priced("v100", "bfloat16") > 5 * priced("v100", "fp16")
    assert priced("H100-SXM-80GB", "FP16") == priced("H100-SXM-80GB", "bfloat16")
    assert priced("H100-SXM-80GB", "fp8_block") == priced("H100-SXM-80GB", "fp8")
    layer = {"tokens": "4096", "hidden": "4096", "ffn": "1536", "topk": "8", "experts": "128", "time_us": "1"}
    for gpu in ("L40S", "RTX-PRO-6000-Server"):  # no blocks were measured there
        both = [kernels.moe(layer | {"gpu": gpu, "dtype": dtype}).predicted_s for dtype in ("fp8", "fp8_block")]
        assert both[0] == both[1]


def test_the_bench_refuses_collectives_of_a_dtype_that_there_is_not() -> None:
    row = {"gpu": "H100-SXM-80GB", "op": "all_gather", "num_gpus": "8", "bytes": "1048576", "time_us": "30"}
    priced = [kernels.collectives(row | {"dtype": one}).predicted_s for one in ("", "half", "BF16", "float", "int8")]
    assert len(set(priced)) == 1
    with pytest.raises(kernels.Refused, match="dtype is 'zzz', expected one of bfloat16"):
        kernels.collectives(row | {"dtype": "zzz"})


def test_the_bench_refuses_float8_attention_where_there_are_no_units() -> None:
    shape = {"batch": "1", "seq": "4096", "heads": "32", "kv_heads": "8", "head_dim": "128", "time_us": "100"}
    assert kernels.attention(shape | {"gpu": "H100-SXM-80GB", "kv_dtype": "fp8"}).predicted_s > 0
    with pytest.raises(kernels.Refused, match="no unit for float8 on A100-SXM-80GB"):
        kernels.attention(shape | {"gpu": "A100-SXM-80GB", "kv_dtype": "fp8"})


def test_no_price_beyond_the_measured_sizes_passes_the_peak() -> None:
    for name in shipped():
        device = device_of(name)
        on, peaks = profile_of(device, library=True), dict(device.peaks)
        if "bfloat16" not in peaks or device.kind == "cpu":
            continue
        for m, n, k in ((2**20, 4096, 4096), (2**20, 16384, 5120), (4096, 300_000, 8192)):
            assert 2 * m * n * k / on.matmul_s("nt", "bfloat16", 2, m, n, k) <= peaks["bfloat16"] * 1.0001
        for heads, seq in ((32, 16384), (8, 2**17), (128, 2048)):
            flops = 2 * heads * seq**2 * 128
            assert flops / on.attention_s("causal", "forward", "bfloat16", 2, heads, seq, seq, 128) <= peaks["bfloat16"]


def test_attention_on_an_l4_is_what_was_measured_with_its_clock_free_and_locked() -> None:
    """Mist's single ops, 128 heads of 2,048: 65 and 42 TFLOP/s forward; longer sequences do not pass that."""
    device = device_of("L4")
    locked = replace(device, peaks=tuple((dtype, rate * 1050 / 2040) for dtype, rate in device.peaks))
    reached = tuple(replace(one, fraction=0.67) if one.kind == "attention" else one for one in locked.achievable)
    for one, rate in ((device, 65e12), (replace(locked, achievable=reached), 42e12)):
        for heads, seq, slack in ((128, 2048, 0.02), (32, 16384, 0.02), (16, 2048, 0.2)):
            found = (
                2
                * heads
                * seq**2
                * 128
                / profile_of(one).attention_s("causal", "forward", "float16", 2, heads, seq, seq, 128)
            )
            assert found == pytest.approx(rate, rel=slack)


def test_a_device_without_a_table_has_its_relatives_ratios_at_its_own_rates() -> None:
    """Twice as fast in all, a device takes half the time for the same sizes, but for the start of a kernel."""
    table, there = kernel_table("GB200"), Rates({"bfloat16": 2.5e15}, 8e12)
    twice = Rates({"bfloat16": 5e15}, 16e12)
    slow, fast = (MeasuredKernels(table, own, there, 1.0, frozenset(PARTS)) for own in (there, twice))
    for sizes in ((8192, 8192, 8192), (32768, 4096, 4096)):
        found = [one.product_s("bfloat16", *sizes) for one in (slow, fast)]
        assert found[0] == pytest.approx(2 * (found[1] or 0.0), rel=0.02)


def test_whole_waves_of_tiles_take_what_their_last_wave_takes() -> None:
    """108 tiles of 256 x 128 are one wave on as many processors; one more row of them is another wave."""
    tiles = [(256.0, 128.0, 1.0)]
    assert in_waves(256 * 12, 128 * 9, tiles, 108) == 1.0
    assert in_waves(256 * 13, 128 * 9, tiles, 108) == pytest.approx(2 * 108 / 117)
    assert in_waves(1, 128, tiles, 108) == in_waves(256, 128, tiles, 108) == 4.0  # beyond that other kernels are chosen
    assert in_waves(3072, 1152, [*tiles, (128.0, 128.0, 1.1)], 108) == 1.0
    assert in_waves(4096, 4096, [], 108) == 0.0
    profile = profile_of(device_of("A100-SXM-80GB"))
    per_row = [profile.matmul_s("nt", "bfloat16", 2, m, 128 * 9, 8192) / m for m in (256 * 12, 256 * 13)]
    assert per_row[1] > 1.2 * per_row[0]


def test_waves_tell_of_shapes_that_were_not_fitted() -> None:
    """Every second shape of a table read from the others, with waves of tiles among sizes and without them."""
    for name, dtype in (("A100-SXM-80GB", "bfloat16"), ("RTX-PRO-6000-Server", "float8")):
        found = json.loads((KERNELS / f"{name}.json").read_text(encoding="utf-8"))["products"][dtype]
        points, ratios, errors = found["points"], found["ratios"], []
        for sizes in (5, 4):
            read = Scatter(
                [point[:sizes] for point in points[::2]], {"forward": ratios[::2]}, found["weights"][:sizes], noise=0.05
            )
            large = [(p[:sizes], r) for p, r in zip(points[1::2], ratios[1::2], strict=True) if p[0] >= 2048]
            errors.append(fmean(abs(read("forward", *point) / ratio - 1) for point, ratio in large))
        assert errors[0] < 0.87 * errors[1]


def test_a_device_with_fewer_processors_has_waves_of_its_own() -> None:
    """Linear layers of 2,048 and 8,192 rows in float16 on an L4 at 1,050 MHz (Mist, single ops): microseconds
    forward. A product of 2,048 by 2,048 with a long sum, which the library splits there, is 18 % too slow."""
    device = device_of("L4")
    locked = replace(device, peaks=tuple((dtype, rate * 1050 / 2040) for dtype, rate in device.peaks))
    reached = tuple(replace(one, fraction=0.88) if one.kind == "matmul" else one for one in locked.achievable)
    profile = profile_of(replace(locked, achievable=reached))
    measured_us = {
        (2048, 6144, 2048): 986, (2048, 8192, 2048): 1267, (2048, 50304, 2048): 7655, (8192, 6144, 2048): 3773,
        (8192, 8192, 2048): 5020, (8192, 50304, 2048): 30318, (8192, 2048, 8192): 4826,
    }  # fmt: skip
    for sizes, one_us in measured_us.items():
        assert profile.matmul_s("nt", "float16", 2, *sizes) == pytest.approx(one_us * 1e-6, rel=0.06)
    assert profile.matmul_s("nt", "float16", 2, 2048, 2048, 8192) == pytest.approx(1320e-6, rel=0.2)


def test_how_long_a_product_takes_tells_of_shapes_that_were_not_fitted() -> None:
    """Every second shape of GB200's table read from the others, with the roofline's microseconds among sizes and
    without them; then the weights and the noise are what fitting finds."""
    found = json.loads((KERNELS / "GB200.json").read_text(encoding="utf-8"))["products"]["bfloat16"]
    points, ratios = found["points"], found["ratios"]
    errors = []
    for sizes, weigh, doubt in ((4, found["weights"], found["noise"]), (3, (1.0, 1.0, 1.0), 0.13)):
        read = Scatter([point[:sizes] for point in points[::2]], {"forward": ratios[::2]}, weigh, noise=doubt)
        large = [(p[:sizes], r) for p, r in zip(points[1::2], ratios[1::2], strict=True) if p[0] >= 2048]
        errors.append(fmean(abs(read("forward", *point) / ratio - 1) for point, ratio in large))
    assert errors[0] < 0.97 * errors[1]


def test_the_busiest_rank_has_more_rows_the_more_ranks_there_are() -> None:
    """Against loads that are drawn: the mean of the busiest of all ranks."""
    draw = Random(0)
    for ranks, skew in ((4, 1.01), (16, 1.2), (64, 1.01)):
        tokens, topk, experts = 8192, 8, 256 // ranks
        even = tokens * topk / ranks
        power, most = 1 - skew, 0.8 * tokens
        drawn = []
        for _ in range(60):
            loads = [((most**power - 1) * draw.random() + 1) ** (1 / power) for _ in range(256)]
            sums = [sum(loads[at : at + experts]) for at in range(0, 256, experts)]
            drawn.append(max(sums) / sum(loads) * tokens * topk)
        found = busiest_rank(tokens, topk, experts, ranks, skew)
        assert found.rows > even
        assert found.rows == pytest.approx(sum(drawn) / len(drawn), rel=0.35)
        assert busiest_rank(tokens, topk, experts, ranks, 0.0) == (even, experts)
    assert busiest_rank(16, 2, 64, 1, 1.2).used < 32


def test_what_few_rows_say_of_sizes_is_drawn_half_way_to_what_larger_tables_say() -> None:
    from fit_kernels import Learned, half_way

    one, others = Learned([1.0, 4.0], 0.01), [Learned([4.0, 4.0], 0.04), Learned([4.0, 1.0], 0.16)]
    assert half_way(one, []) == one
    assert half_way(one, others) == Learned([2.0, 2.83], 0.0283)


def test_what_is_left_out_is_read_from_its_relatives(tmp_path: Path) -> None:
    """The size of a group that a table lacks is not in its copy; a table priced by itself has what it was fitted to."""
    from fit_kernels import Sample
    from left_out import by_relative, without_size

    name = without_size("H100-SXM-80GB", 4, tmp_path)
    assert set(json.loads((tmp_path / f"{name}.json").read_text())["lines"]["all_gather"]) == {"2", "8"}
    found = json.loads((KERNELS / "B200-SXM.json").read_text(encoding="utf-8"))["mixture"]["float4"]
    samples = [Sample(tuple(p), 1.0, r) for p, r in zip(found["points"], found["ratios"], strict=True)]
    own, other = (
        fmean(map(abs, by_relative(("B200-SXM", "mixture", "float4"), samples, kernel_table(table))))
        for table in ("B200-SXM", "GB200")
    )
    assert own < 0.02 < other < 0.1
