"""Measured kernels: what profiles give to prices for shapes with published times, and what calibration keeps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meshwright.cluster.kernel_table import kernel_table, measured_kernels
from meshwright.cluster.profile_load import device_of, profile_of, shipped
from meshwright.errors import ClusterError

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import kernels


def test_products_take_what_was_measured() -> None:
    """A few rows of the published table (ai-dynamo/aiconfigurator 095f58a), in microseconds."""
    for name, m, n, k, time_us in (("B200-SXM", 4096, 12288, 10240, 629.7), ("GB200", 4097, 3584, 3584, 60.3)):
        assert profile_of(device_of(name)).matmul_s("nt", "bfloat16", 2, m, n, k) == pytest.approx(
            time_us * 1e-6, rel=0.1
        )


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
    assert len(reasons) == 7
    for text in ("TPU-v9", "int3", "m is 0", "time_us is -1", "k is 'x'", "without the columns hidden", "missing.csv"):
        assert any(text in reason for reason in reasons), text
    assert "left out: 7" in capsys.readouterr().out
