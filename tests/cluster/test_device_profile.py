"""Device profiles: every shipped one is sound and sourced, figures between points are read right, faults are named."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from meshwright.cluster import load_cluster
from meshwright.cluster.device import Achievable
from meshwright.cluster.profile_load import check_profile, device_of, profile_of, read_profile, shipped, weights_of
from meshwright.cluster.profile_tables import Curve, Grid, filled
from meshwright.cluster.rooflines import attention_base_s, product_base_s, waves
from meshwright.cluster.scatter import Scatter
from meshwright.errors import ClusterError

GPUS = [name for name in shipped() if name != "cpu"]
FIGURES = ("peaks", "memory_bytes", "memory_bandwidth", "launch_s", "reserve_bytes", "achievable.matmul", "tables")


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_figure_has_a_source(name: str) -> None:
    data = read_profile(name)
    assert [figure for figure in FIGURES if not data["sources"].get(figure)] == []
    device_of(name).verify()
    if "like" in data:
        assert "assumption" in data["sources"]["tables"]


def test_the_measured_ones_say_with_what() -> None:
    for name in ("H200-SXM-141GB", "cpu"):
        measured = read_profile(name)["measured"]
        assert measured["torch"]
        assert measured["seconds"] < 180


def test_a_curve_is_flat_below_a_power_law_between_and_a_rate_above() -> None:
    curve = Curve([(1e6, 1e-5), (1e4, 2e-6)])
    assert curve(0) == 0
    assert curve(1) == curve(1e4) == 2e-6
    assert curve(1e5) == pytest.approx(sqrt(2e-6 * 1e-5))
    assert curve(3e6) == pytest.approx(3e-5)


def test_a_grid_passes_through_its_points_and_keeps_its_edges() -> None:
    axes = (("m", (32, 128, 512)), ("n", (64, 256)))
    fractions = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    grid = Grid(axes, fractions)
    for point, fraction in zip(product(*(sizes for _, sizes in axes)), fractions, strict=True):
        assert grid(*point) == pytest.approx(fraction)
    assert grid(64, 64) == pytest.approx(sqrt(0.1 * 0.3))  # halfway by ratio
    assert grid(1 << 20, 1 << 20) == pytest.approx(0.6)
    assert grid.at_least(1, 1 << 20) == (32, 1 << 20)


def test_points_that_were_not_measured_take_the_nearest() -> None:
    axes = (("m", (1, 2, 4)), ("n", (1, 2)))
    assert filled(axes, {(1, 1): 0.5, (4, 2): 0.25}) == [0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_a_scatter_reads_a_power_law_between_its_points_and_keeps_its_edges() -> None:
    points = [(m, n) for m in (1, 4, 16, 64) for n in (1, 8, 64)]
    law = [2.0 * m**0.5 / n**0.25 for m, n in points]
    scatter = Scatter(points, {"forward": law, "backward": [3.0] * len(points)}, (1.0, 1.0))
    assert scatter("forward", 8, 20) == pytest.approx(2.0 * 8**0.5 / 20**0.25, rel=0.1)
    assert scatter("backward", 8, 20) == pytest.approx(3.0)
    assert scatter("forward", 1 << 20, 8) == scatter("forward", 64, 8)
    same = scatter.against(scatter)
    assert same("forward", 8, 20) == pytest.approx(1.0, rel=0.05)  # a regression smooths


def test_a_scatter_is_nearer_to_what_was_measured_than_its_neighbours_are() -> None:
    """Every sample of causal attention, read from the others: what a size between samples can expect."""
    data = read_profile("H200-SXM-141GB")["scatters"]["attention.causal"]["bfloat16"]
    points, ratios = data["points"], data["ratios"]["forward"]
    errors = []
    for i in range(len(points)):
        rest = Scatter(points[:i] + points[i + 1 :], {"forward": ratios[:i] + ratios[i + 1 :]}, weights_of("attention"))
        errors.append(abs(rest("forward", *points[i]) / ratios[i] - 1))
    assert sorted(errors)[len(errors) // 2] < 0.1


def test_a_strange_figure_says_little_of_those_around_it() -> None:
    points = [(2.0**i, 2.0**j) for i in range(4, 12) for j in range(4, 12)]
    ratios = [1.0] * len(points)
    ratios[27] = 20.0  # a library that chose badly there
    plain = Scatter(points, {"forward": ratios}, (1.0, 1.0))
    doubting = Scatter(points, {"forward": ratios}, (1.0, 1.0), plain.doubts())
    beside = (points[27][0] * 1.5, points[27][1])
    assert plain("forward", *beside) > 1.5
    assert doubting("forward", *beside) < 1.3
    assert plain.doubts()["forward"][27] > 10 * max(plain.doubts()["forward"][0], plain.doubts()["forward"][-1])


def test_a_product_waits_for_its_last_wave() -> None:
    def base_s(rows: int) -> float:
        return product_base_s(60e12, 4.8e12, 4, 132, rows, 1536, 1536)

    full, more = base_s(11 * 128), base_s(11 * 128 + 16)
    assert more > 1.04 * full  # a hundredth more work
    assert base_s(44 * 128) == pytest.approx(4 * full, rel=0.1)


def test_a_last_wave_of_tiles_takes_as_long_as_a_full_one() -> None:
    assert waves(132, 132) == 1.0
    assert waves(133, 132) == pytest.approx(2 * 132 / 133)
    assert waves(13200, 132) == pytest.approx(1.005)
    assert waves(5, 1) == 1.0
    peak = {"peak": 1e15, "bandwidth": 1e15, "itemsize": 2, "units": 132, "queries": 128, "keys": 128, "width": 64}
    one, full, more = (attention_base_s(heads=n, causal=False, side="forward", **peak) for n in (1, 132, 133))  # type: ignore[arg-type]
    assert one == pytest.approx(full)
    assert more - 4e-6 == pytest.approx(2 * (full - 4e-6))


def test_a_pair_asks_for_more_kernels_and_no_autograd() -> None:
    profile = profile_of(device_of("H200-SXM-141GB"))
    assert profile.host("linear", pair=True) != profile.host("linear")
    assert profile.host("linear", "bfloat16", pair=True) == profile.host("linear", "float32", pair=True)
    assert profile.host("added", pair=True)[1] < profile.host("added")[1] / 4  # its gradients are what came back
    assert profile_of(device_of("cpu")).host("linear", pair=True) == (0.0, 0.0)


def test_a_trainers_update_costs_its_bytes_and_its_tensor() -> None:
    profile = profile_of(device_of("H200-SXM-141GB"))
    host_s, device_s = profile.update_s("adamw.sharded", "float32", 1 << 30)
    assert device_s == pytest.approx(7 * (1 << 30) / 4.8e12, rel=0.5)
    assert host_s == profile.update_s("adamw.sharded", "float32", 4)[0] > 0
    assert profile_of(device_of("cpu")).update_s("adamw.sharded", "float32", 1 << 20)[0] == 0.0


@pytest.mark.parametrize("name", GPUS)
def test_the_best_matmul_reaches_what_the_profile_says(name: str) -> None:
    """Where the table of another device is read, up to how well waves on its own processors fit some size."""
    device = device_of(name)
    dtype = "bfloat16" if "bfloat16" in dict(device.peaks) else "float16"
    borrowed = read_profile(name).get("measured_kernels", {}).get("table", name) != name
    sizes = list(product((1024, 3072, *((6144, 7168) if borrowed else ()), 8192), repeat=3))
    profile = profile_of(device)
    rates = [2 * m * n * k / profile.matmul_s("nn", dtype, 2, m, n, k) for m, n, k in sizes]
    fraction = device.achievable_fraction("matmul")
    assert max(rates) / device.peak_flops(dtype) == pytest.approx(fraction, rel=0.05 if borrowed else 0.01)


@pytest.mark.parametrize("name", GPUS)
def test_a_large_elementwise_op_moves_bytes_as_fast_as_a_copy(name: str) -> None:
    device = device_of(name)
    rate = 1e9 / profile_of(device).kernel_s("add.forward", "float32", 1e9)
    assert rate == pytest.approx(device.memory_bandwidth * device.achievable_fraction("memory"), rel=0.1)


def test_more_work_never_takes_less_time_along_powers_of_two() -> None:
    """Up to the noise of what was measured: a quarter."""
    profile = profile_of(device_of("H200-SXM-141GB"))
    for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
        times = [profile.matmul_s("nt", dtype, itemsize, 1 << n, 4096, 4096) for n in range(4, 16)]
        assert all(later > 0.75 * earlier for earlier, later in pairwise(times))
        times = [profile.kernel_s("add.forward", dtype, 1 << n) for n in range(10, 34)]
        assert times == sorted(times)


def test_odd_sizes_cost_more_in_half_precision() -> None:
    profile = profile_of(device_of("H200-SXM-141GB"))
    even, odd = (profile.matmul_s("nt", "bfloat16", 2, 4096, n, 4096) for n in (50264, 50257))
    assert odd > 2 * even  # GPT-2's vocabulary: the reason for padding it


def test_a_device_without_a_profile_is_priced_by_its_rates(tmp_path: Path) -> None:
    text = CLUSTER.replace("PROFILE", 'memory = "80GiB"\nmemory_bandwidth = "1TB/s"\npeaks = { float32 = "10T" }')
    (tmp_path / "c.toml").write_text(text)
    device = load_cluster(str(tmp_path / "c.toml")).devices[0]
    profile = profile_of(device)
    assert 2 * 8192**3 / profile.matmul_s("nn", "float32", 4, 8192, 8192, 8192) < 1.1 * 10e12
    copied = 1e12 * device.achievable_fraction("memory")  # of the nearest known device
    assert 1e9 / profile.kernel_s("add.forward", "float32", 1e9) == pytest.approx(copied, rel=0.1)
    assert min(profile.host("linear")) > 0  # no launch cost was given: the nearest device has one


CLUSTER = """
backend = "nccl"
[device.mine]
PROFILE
[level.host]
bandwidth = "450GB/s"
latency = "3us"
[[host]]
device = "mine"
devices = 8
"""


def write(folder: Path, line: str) -> str:
    (folder / "c.toml").write_text(CLUSTER.replace("PROFILE", line))
    return str(folder / "c.toml")


def test_a_cluster_names_a_profile_by_its_name_or_by_a_path_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(read_profile("H100-SXM-80GB") | {"name": "x", "launch_s": 1e-6}))
    by_name = load_cluster(write(tmp_path, 'profile = "H100-SXM-80GB"')).devices[0]
    by_path = load_cluster(write(tmp_path, 'profile = "mine.json"\nmemory = "40GiB"')).devices[0]
    assert (by_name.peaks, by_name.profile) == (device_of("H100-SXM-80GB").peaks, "H100-SXM-80GB")
    assert (by_path.name, by_path.launch_s, by_path.memory_bytes) == ("mine", 1e-6, 40 << 30)
    assert profile_of(by_path).host("linear")[0] < profile_of(by_name).host("linear")[0]


def test_a_profile_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"line 4: device\.mine\.profile is '.*nowhere\.json'"):
        load_cluster(write(tmp_path, 'profile = "nowhere.json"'))
    with pytest.raises(ClusterError, match=r"device profile 'H900'"):
        load_cluster(write(tmp_path, 'profile = "H900"'))


def edited(path: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(read_profile("H200-SXM-141GB")))
    *way, last = path.split("/")
    inner: Any = data
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return data


FAULTS = [
    ("schema", 1, "schema is 1"),
    ("memory_bandwidth", -1, "memory_bandwidth is -1"),
    ("launch_s", "fast", "launch_s is 'fast'"),
    ("peaks/float32", 0, r"peaks\.float32 is 0"),
    ("kernels", None, "kernels is None"),
    ("kernels/add.forward/float32", [], r"kernels\.add\.forward\.float32 is \[\]"),
    ("kernels/add.forward/float32", [[1, 0]], r"kernels\.add\.forward\.float32 is 0"),
    ("grids/matmul.nt/float32/fractions", [1.0], r"grids\.matmul\.nt\.float32\.fractions is \[1\.0\]"),
    ("grids/matmul.nt/float32/axes/m", [8, 4], r"grids\.matmul\.nt\.float32\.axes\.m is \[8, 4\]"),
    ("host/float32/eager", None, r"host\.float32\.eager is None"),
    ("optimizers/adamw.foreach/fixed_s", True, r"optimizers\.adamw\.foreach\.fixed_s is True"),
    ("scatters/attention.plain/float32/points", [[8, 64]], r"scatters\.attention\.plain\.float32\.points is \[8, 64\]"),
    ("scatters/attention.plain/float32/ratios/forward", [1.0], r"scatters\.attention\.plain\.float32\.ratios\.forward"),
    ("scatters/attention.plain/float32/ratios", {}, r"scatters\.attention\.plain\.float32\.ratios is \[\]"),
    ("measured_kernels/processors", 0, r"measured_kernels\.processors is 0"),
    ("speed", 9, "speed is 9"),
]


@pytest.mark.parametrize(("path", "value", "message"), FAULTS)
def test_a_fault_in_a_profile_is_named(path: str, value: Any, message: str) -> None:
    check_profile(read_profile("H200-SXM-141GB"), "mine.json")
    with pytest.raises(ClusterError, match=rf"device profile mine\.json: {message}"):
        check_profile(edited(path, value), "mine.json")


def test_what_is_not_json_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ClusterError, match=r"bad\.json is not JSON"):
        read_profile(str(tmp_path / "bad.json"))


def test_a_device_may_name_its_own_attention_and_clocks_under_load() -> None:
    """FlashAttention-2 forward on an L4 whose clock is free: 65 of 121 TFLOP/s (Mist, single ops)."""
    device = device_of("L4")
    profile = profile_of(device)
    seconds = profile.attention_s("causal", "forward", "float16", 2, 128, 2048, 2048, 128)
    assert 2 * 128 * 2048**2 * 128 / seconds == pytest.approx(0.54 * device.peak_flops("float16"), rel=1e-6)
    locked = replace(device, achievable=(*device.achievable, Achievable("sustained", 0.8)))
    assert profile_of(locked).steady("float16", 5e13) == (1.25, 1.0)
    assert profile_of(locked).steady("float16", 1e12) == (1.25, 1.0)


def test_clocks_under_load_are_those_of_the_device_they_were_measured_on() -> None:
    """An H200's products are slower the more of a step they fill; devices with its tables keep full clocks."""
    h200, other = profile_of(device_of("H200-SXM-141GB")), profile_of(device_of("A100-SXM-80GB"))
    reached = 0.8 * 989e12
    few, all_of_it = (h200.steady("bfloat16", share * reached)[0] for share in (0.2, 1.0))
    assert 1.0 < few < 1 / h200.sustained("bfloat16") < all_of_it < 1.25
    assert h200.sustained("float32") == 1.0
    assert other.tables.kernels is h200.tables.kernels
    assert other.steady("bfloat16", reached) == (1.0, 1.0)
    assert other.sustained("bfloat16") == 1.0
