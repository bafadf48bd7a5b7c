"""TOML: reads what it writes, and every fault names its line and field."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.cluster import Group, load_cluster
from meshwright.cluster.origins import FROM, origin, sources_of
from meshwright.cluster.presets import PRESETS
from meshwright.cluster.profile_load import profile_of, shipped
from meshwright.cluster.toml.read import read_cluster
from meshwright.cluster.toml.write import write_cluster
from meshwright.errors import ClusterError

GOOD = """\
name = "two kinds"
backend = "nccl"

[device.fast]
memory = "80GiB"
memory_bandwidth = "3.35TB/s"
peaks = { bfloat16 = "989T", float32 = 67e12 }
achievable = { matmul = { fraction = 0.8, half_work = "2G" }, memory = 0.9 }

[device.slow]
memory = "16GB"
reserve = "1GiB"
memory_bandwidth = "900GB/s"
launch = "5us"
peaks = { float32 = "15.7T" }

[level.host]
bandwidth = "450GB/s"
latency = "3us"

[level.pod]
bandwidth = "400Gbit/s"
links = 8
latency = "10us"

[[host]]
count = 2
device = "fast"
devices = 8

[[host]]
count = 4
device = "slow"
devices = 4
uplink = { bandwidth = "25Gbit/s", latency = "20us" }
"""


def test_units_and_structure(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(GOOD)
    cluster = load_cluster(str(tmp_path / "c.toml"))
    assert cluster.device_count == 2 * 8 + 4 * 4
    fast, slow = cluster.device("fast"), cluster.device("slow")
    assert (fast.memory_bytes, slow.usable_bytes) == (80 << 30, 16 * 10**9 - (1 << 30))
    assert (fast.peak_flops("bfloat16"), slow.peak_flops("float32")) == (989e12, 15.7e12)
    assert fast.achievable_fraction("matmul", 2e9) == pytest.approx(0.4)
    link, uplink = cluster.root.link, cluster.root.members[1].uplink
    assert uplink is not None
    assert (link.latency_s, link.bandwidth, link.count) == (pytest.approx(1e-5), 50e9, 8)
    assert (uplink.latency_s, uplink.bandwidth, uplink.count) == (pytest.approx(2e-5), 3.125e9, 1)


TEN_LINES = """\
backend = "nccl"
[device.h100]
memory = "80GiB"
memory_bandwidth = "3.35TB/s"
peaks = { bfloat16 = "989T", float32 = "67T" }
[level.host]
bandwidth = "450GB/s"
[[host]]
device = "h100"
devices = 8
"""


def test_what_is_left_out_is_that_of_the_nearest_known_device_and_link_and_is_noted() -> None:
    mine, preset = read_cluster(TEN_LINES, "file"), load_cluster("h100:8")
    (device,), (known,) = mine.devices, preset.devices
    assert (device.launch_s, device.reserve_bytes) == (known.launch_s, known.reserve_bytes)
    assert (device.achievable, device.profile) == (known.achievable, known.profile)
    assert mine.mesh((8,)).axes[0] == preset.mesh((8,)).axes[0]
    sources = dict(mine.sources)
    for field in ("h100.launch_s", "h100.reserve_bytes", "h100.profile", "host.efficiency", "overhead_s"):
        assert "left out" in sources[field]
    gloo = read_cluster(TEN_LINES.replace("nccl", "gloo").replace("450GB/s", '450GB/s"\nlatency = "1us'), "file")
    assert not gloo.root.link.measured


def test_a_device_of_another_name_is_known_by_its_rates() -> None:
    text = TEN_LINES.replace("h100", "mine").replace("3.35TB/s", "300GB/s").replace("80GiB", "23GiB")
    cluster = read_cluster(text.replace("989T", "121T").replace("67T", "30T").replace("450GB/s", "32GB/s"), "file")
    assert cluster.devices[0].profile == "L4"
    assert cluster.root.link.measured == "L4"


def test_dtypes_that_are_left_out_are_scaled_from_the_nearest_device() -> None:
    text = TEN_LINES.replace('"989T", float32 = "67T"', '"494.5T"')
    (device,), sources = (cluster := read_cluster(text, "in/mine.toml")).devices, dict(cluster.sources)
    assert device.peak_flops("float32") == pytest.approx(33.5e12)
    assert profile_of(device).matmul_s("nt", "float32", 4, 512, 512, 512) > 0
    assert "left out: 0.0677 of bfloat16, as H100-SXM-80GB" in sources["h100.peaks.float32"]
    assert {sources[key] for key in ("h100.peaks.bfloat16", "h100.memory_bytes", "host.bandwidth")} == {
        "given by mine.toml"
    }
    assert sources["h100.launch_s"].endswith(dict(load_cluster("h100:8").sources)["H100-SXM-80GB.launch_s"])
    alone = text.replace("nccl", "gloo").replace("450GB/s", '450GB/s"\nlatency = "1us')
    with pytest.raises(ClusterError, match=r"line 5: device\.h100\.peaks\.float32 is missing"):
        read_cluster(alone, "file")


def test_where_a_figure_comes_from_is_followed_to_its_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """From device to device; no shipped one says no more than that another is like it."""
    first, last = origin("RTX-4090", "achievable.matmul")
    assert first == "RTX-4090: assumption: as RTX-PRO-6000-Server"
    assert "measured on RTX-PRO-6000-Server" in last
    for device in shipped():
        for key in sources_of(device):
            end = origin(device, key)[-1].partition(": ")[2]
            assert not re.fullmatch(r"assumption: as \S+( \S+)?", end), (device, key, end)
    sources = dict(read_cluster(TEN_LINES, "file").sources)
    assert [hop.partition(":")[0] for hop in sources["h100.launch_s"].split(FROM)[1:]] == [
        "H100-SXM-80GB",
        "H200-SXM-141GB",
    ]
    assert main(["cluster", "show", "4090:1", "--sources"]) == 0
    assert "      <- H200-SXM-141GB: measured on an H200 by one `meshwright calibrate`" in capsys.readouterr().out


@pytest.mark.parametrize("name", [f"{preset}:{hosts}" for preset in PRESETS for hosts in (1, 3)])
def test_what_is_written_reads_back(name: str) -> None:
    cluster = load_cluster(name)
    assert read_cluster(write_cluster(cluster), "file") == cluster
    mixed = read_cluster(GOOD, "file")
    assert read_cluster(write_cluster(mixed), "file") == mixed


def test_uneven_groups_of_hosts() -> None:
    text = GOOD.replace("[[host]]", '[level.hall]\nbandwidth = "1GB/s"\nlatency = 0.001\n\n[[host]]', 1)
    text = text.replace("links = 8", "links = 8\nsize = [2, 4]")
    cluster = read_cluster(text, "file")
    assert cluster.root.levels() == ("host", "pod", "hall")
    assert [member.of.device_count for member in cluster.root.members if not isinstance(member.of, str)] == [16, 16]
    assert read_cluster(write_cluster(cluster), "file") == cluster


def test_a_host_may_mix_device_types() -> None:
    mixed = GOOD.replace('device = "fast"\ndevices = 8', 'device = ["fast", "slow"]\ndevices = [6, 2]')
    cluster = read_cluster(mixed, "file")
    assert cluster.device_names()[:8] == ("fast",) * 6 + ("slow",) * 2
    assert read_cluster(write_cluster(cluster), "file") == cluster


RACKS = GOOD.replace(
    "[[host]]",
    """\
[[level.pod.group]]
count = 2
size = 1

[[level.pod.group]]
size = 4
link = { bandwidth = "10GB/s", latency = "15us" }
uplink = { bandwidth = "2GB/s", latency = "50us" }

[level.hall]
bandwidth = "8GB/s"
latency = "40us"
taper = 0.3

[[host]]""",
    1,
)


def test_a_group_may_have_links_of_its_own() -> None:
    cluster = read_cluster(RACKS, "file")
    assert cluster.root.levels() == ("host", "pod", "hall")
    alike, apart = cluster.root.members
    assert (alike.count, alike.uplink, apart.count) == (2, None, 1)
    assert isinstance(apart.of, Group)
    assert (apart.of.link.latency_s, apart.of.link.bandwidth) == (pytest.approx(1.5e-5), 10e9)
    assert apart.uplink is not None
    assert (apart.uplink.latency_s, apart.uplink.bandwidth) == (pytest.approx(5e-5), 2e9)
    assert read_cluster(write_cluster(cluster), "file") == cluster
    # Sixteen devices leave the slow pod together: that is what its traffic is priced at.
    across = cluster.mesh((2, 16)).axis("x").hops[-1]
    assert (across.level, across.bandwidth) == ("hall", pytest.approx(2e9 / 16))


RACK_FAULTS = [
    ('link = { bandwidth = "10GB/s"', 'link = { bandwidth = "-1GB/s"', r"line 32: .*group\[1\]\.link\.bandwidth is"),
    ('uplink = { bandwidth = "2GB/s", ', "uplink = { ", r"line 33: .*group\[1\]\.uplink\.bandwidth is missing"),
    ("size = 4", "size = 5", r"line 26: level\.pod\.group has groups of \[1, 1, 5\]"),
    ("size = 4\n", "", r"line 30: level\.pod\.group\[1\]\.size is missing"),
    ("size = 4", "sise = 4", r"line 31: level\.pod\.group\[1\]\.sise is not a field"),
    ("links = 8", "links = 8\nsize = 2", r"line 24: level\.pod\.size is given twice"),
    ("taper = 0.3", "taper = -0.3", r"line 38: level\.hall\.taper is -0\.3"),
    ("taper = 0.3", "group = [{ size = 3, uplink = { bandwidth = 1 } }]", r"line 38: .*group\[0\]\.uplink leads"),
    ("taper = 0.3", "group = 3", r"line 38: level\.hall\.group is 3"),
    ("taper = 0.3", "size = 2", r"line 38: level\.hall\.size is 2"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), RACK_FAULTS)
def test_faults_of_groups_name_line_and_field(old: str, new: str, message: str) -> None:
    assert RACKS.count(old) == 1
    with pytest.raises(ClusterError, match=message):
        read_cluster(RACKS.replace(old, new), "c.toml")


def test_odd_names_are_written_so_that_they_read_back() -> None:
    odd = GOOD.replace("two kinds", 'my \\"big\\" one').replace("[level.pod]", '[level."pod 1"]')
    odd = odd.replace("[device.fast]", '[device."A.100"]').replace('device = "fast"', 'device = "A.100"')
    cluster = read_cluster(odd, "file")
    assert cluster.root.level == "pod 1"
    assert read_cluster(write_cluster(cluster), "file") == cluster


FAULTS = [
    ('memory = "80GiB"\n', "", r"c\.toml, line 4: device\.fast\.memory is missing"),
    ('memory = "80GiB"', 'memory = "-3GiB"', r"line 5: device\.fast\.memory is '-3GiB'"),
    ('memory = "80GiB"', "memory = -3", r"line 5: device\.fast\.memory is -3"),
    ("links = 8", "links = 0", r"line 23: level\.pod\.links is 0"),
    ('bandwidth = "450GB/s"', 'bandwidth = "fast"', r"line 18: level\.host\.bandwidth is 'fast'"),
    ('bandwidth = "450GB/s"', "bandwidth = 0", r"line 18: level\.host\.bandwidth is 0"),
    ('latency = "10us"', 'latancy = "10us"', r"line 24: level\.pod\.latancy is not a field"),
    ('device = "slow"\ndevices', 'device = "sloe"\ndevices', r"line 33: host\[1\]\.device is 'sloe'"),
    ('backend = "nccl"', 'backend = "mpi"', r"line 2: backend is 'mpi'"),
    ('bandwidth = "25Gbit/s", ', "", r"line 35: host\[1\]\.uplink\.bandwidth is missing"),
    ("memory = 0.9 }", "memory = 1.9 }", r"line 8: device\.fast\.achievable\.memory is 1\.9"),
    ("devices = 8", "devices = [8]", r"line 29: host\[0\]\.devices is \[8\]"),
    ("devices = 8", "devices = true", r"line 29: host\[0\]\.devices is True"),
    ('name = "two kinds"', "name = two", r"not TOML: .*line 1"),
    ("links = 8", "size = 4", r"line 23: level\.pod\.size is 4"),
    ("links = 8", 'size = "all"', r"line 23: level\.pod\.size is 'all'"),
    ('bandwidth = "450GB/s"', "bandwidth = nan", r"line 18: level\.host\.bandwidth is nan"),
    ('bandwidth = "450GB/s"', "bandwidth = inf", r"line 18: level\.host\.bandwidth is inf"),
    ('latency = "3us"', 'latency = "3us"\nsize = 8', r"line 20: level\.host\.size is not for the innermost level"),
    ('latency = "10us"', "latency = 1\nefficiency = { all_redcue = 0.9 }", r"line 25: .*efficiency\.all_redcue is not"),
    ("count = 2", "count = 0", r"line 27: host\[0\]\.count is 0"),
    ("count = 2", "count = 99999999999", r"line 27: host\[0\]\.count is 99999999999"),
    ('device = "fast"', 'device = ["fast", ["slow"]]', r"line 29: host\[0\]\.devices is 8"),
    ('device = "fast"\ndevices = 8', "device = []\ndevices = []", r"line 28: host\[0\]\.device is \[\](.|\n)*one of"),
    ('bandwidth = "450GB/s"', "bandwidth = 1e-320", r"line 18: level\.host\.bandwidth is 1e-320"),
    ('bandwidth = "450GB/s"', "bandwidth = 1e308", r"line 18: level\.host\.bandwidth is 1e\+308"),
    ('latency = "10us"', "latency = 1\nefficiency = { all_reduce = 97 }", r"line 25: .*efficiency\.all_reduce is 97"),
    ("links = 8", "links = 8\ntaper = 1e3", r"line 24: level\.pod\.taper is 1000\.0(.|\n)*from 0 to 2"),
    ("memory = 0.9 }", "memroy = 0.9 }", r"line 8: device\.fast\.achievable\.memroy is not a field"),
    ("{ bfloat16", "{ bf16", r"line 7: device\.fast\.peaks\.bf16 is not a field"),
    ('memory = "16GB"', 'memory = "1GB"', r"line 12: device\.slow\.reserve is '1GiB'"),
    ('memory = "80GiB"', 'memory = "64MiB"', r"device\.fast\.reserve is [\d,]+ bytes, as of H100-SXM-80GB"),
    ('memory = "16GB"', 'kind = "tpu"\nmemory = "16GB"', r"line 11: device\.slow\.kind is 'tpu'"),
    ('"989T"', "989", r"line 7: device\.fast\.peaks\.bfloat16 is 989(.|\n)*from 1G to 100P(.|\n)*\"989T\" was meant"),
    ('memory = "80GiB"', 'memory = "24PB"', r"line 5: device\.fast\.memory is '24PB'(.|\n)*\"24GiB\" was meant"),
    ('"3.35TB/s"', "3.35", r"line 6: device\.fast\.memory_bandwidth is 3\.35(.|\n)*\"3\.35TB/s\" was meant"),
    ('bandwidth = "450GB/s"', "bandwidth = 450", r"level\.host\.bandwidth is 450\n(.|\n)*\"450GB/s\" was meant"),
    ('latency = "3us"', "latency = 30", r"level\.host\.latency is 30\n(.|\n)*\"30us\" was meant"),
    ("[device.slow]", "[device.fast]", r"not TOML: .*line 10"),
    ('name = "two kinds"', "sources = 3", r"line 1: sources is 3"),
]


@pytest.mark.parametrize(("old", "new", "message"), FAULTS)
def test_faults_name_line_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    (tmp_path / "c.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(ClusterError, match=message):
        load_cluster(str(tmp_path / "c.toml"))


def test_the_examples_of_the_documentation_are_clusters() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    first, sheet, second = (block.partition("```")[0] for block in text.split("```toml\n")[1:])
    assert read_cluster(first, "docs").device_count == 32
    assert read_cluster(sheet, "docs").devices[0].name == "a5000"
    head = first[: first.index("[level.pod]")]
    racks = read_cluster(head + second + '[[host]]\ncount = 28\ndevice = "h100"\ndevices = 8\n', "docs")
    assert racks.root.levels() == ("host", "rack", "hall")
    assert [(member.count, member.uplink is None) for member in racks.root.members] == [(3, True), (1, False)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_far_slower_than_float32_is_a_wrong_unit(dtype: str) -> None:
    """No device is slower in it than a 64th."""
    slow, slower = (GOOD.replace('bfloat16 = "989T"', f'{dtype} = "{rate}"') for rate in ("1.1T", "0.66T"))
    assert dict(read_cluster(slow, "file").devices[0].peaks)[dtype] == 1.1e12
    with pytest.raises(
        ClusterError, match=rf"(?s)device\.fast\.peaks\.{dtype} is 6\.6e\+11, less than a hundredth.*unit"
    ):
        read_cluster(slower, "file")


def test_an_uplink_needs_a_level_above() -> None:
    text = GOOD[: GOOD.index("[level.pod]")] + GOOD[GOOD.index("[[host]]\ncount = 4") :].replace(
        "count = 4", "count = 1"
    )
    with pytest.raises(ClusterError, match=r"host\[0\]\.uplink leads nowhere"):
        read_cluster(text, "file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"c\.toml: device is missing"),
        (b"level = 3", "device is missing"),
        (b"device = 3\nlevel = 3\nhost = 3", r"line 1: device is 3"),
        (b"hello world", "not TOML"),
        (b"overhead = 1" + b"0" * 5000, "not TOML"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
    ],
)
def test_files_that_are_no_clusters(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ClusterError, match=message):
        load_cluster(str(tmp_path / "c.toml"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"nowhere\.toml"):
        load_cluster("nowhere.toml")
    (folder := tmp_path / "folder.toml").mkdir()
    with pytest.raises(ClusterError, match="directory"):
        load_cluster(folder)
    (tmp_path / "c.toml").write_text(GOOD)
    assert load_cluster(tmp_path / "c.toml").device_count == 32


def test_show_says_what_a_file_leaves_out_before_the_table_of_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text(TEN_LINES)
    assert main(["cluster", "show", str(tmp_path / "c.toml")]) == 0
    shown = capsys.readouterr().out
    assert shown.index("the file leaves out") < shown.index("collective")


def test_show_has_the_same_tables_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "show", "dgx-h100:2", "--json"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert found.pop("devices") == 16
    assert found == tomllib.loads(write_cluster(load_cluster("dgx-h100:2")))
    path = tmp_path / "cluster.json"
    assert main(["cluster", "show", "dgx-h100:2", "--json", str(path)]) == 0
    assert path.read_text() == printed
    assert "dgx-h100:2: 16 devices" in capsys.readouterr().out, "the tree is printed beside a file"
    assert main(["cluster", "show", "dgx-h100:2", "--json", "--toml"]) == 2
    assert main(["cluster", "show", "dgx-h100:2", "--json", str(tmp_path / "none" / "cluster.json")]) == 2
