"""What meshwright reads, with examples of it, for `bench/fuzz.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

TOML = b"""
name = "two kinds"
backend = "nccl"
overhead = "2us"

[device.fast]
memory = "80GiB"
reserve = "1GiB"
memory_bandwidth = "3.35TB/s"
peaks = { bfloat16 = "989T", float32 = "67T" }
achievable = { matmul = 0.7, memory = { fraction = 0.9, half_work = "1M" } }

[device.slow]
profile = "cpu"

[level.host]
bandwidth = "450GB/s"
latency = "3us"
efficiency = { all_reduce = 0.9 }

[level.pod]
bandwidth = "50GB/s"
links = 8
latency = "10us"
size = 2
shared = true

[level.all]
bandwidth = "200Mbit/s"
latency = 1e-5
taper = 0.1

[[host]]
count = 2
devices = 8
device = "fast"

[[host]]
count = 2
devices = [2, 4]
device = ["fast", "slow"]
uplink = { bandwidth = "10GB/s", latency = "1us" }

[sources]
bandwidth = "a paper"
"""
PINS = (
    b"tp=2", b"dp=4", b"mesh=2x4", b"zero=3:8", b"zero=1", b"sp=on", b"microbatch=4", b"pp=2+2+4", b"schedule=1f1b",
    b"layers.*.up.weight=S(0) on tp", b"recompute=rotor", b"split=matmul", b"head.weight=[S(0), I]", b"recompute=full",
)  # fmt: skip
REFERENCES = (
    b"gpt?layers=2&hidden=64&heads=4", b"llama3-8b", b"llama?layers=4&vocab=128", b"vit?image=32&patch=4",
    b"resnet?depths=1,1",    b"hf:gpt2?n_layer=1&n_embd=32&n_head=2", b"t5-large?dropout=0.1",
)  # fmt: skip
TEXTS = (b"20GiB", b"512MB", b"7", b"dgx-h100:32", b"local:3", b"local", b"[S(0), R]", b"forward 0 mb1", b"0F3")
CONTEST = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 4], [1, 3], [2, 6]],
            "costs": [[1.0, 2.0], [3.0, 1e18], [0.5]],
            "usages": [[10, 20], [5, 5], [7]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[1, 2, 3, 4], [1e18, 2]]},
        "usage_limit": 40,
    }
}
WEIGHTS = {"metadata": {"total_size": 64}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
Read = Callable[[bytes], object]


def make_kinds(folder: Path) -> Iterator[tuple[str, list[bytes], Read]]:
    yield "cluster", [TOML], _in_file(folder / "cluster.toml", _cluster)
    yield "profile", _profiles(), _in_file(folder / "profile.json", _profile)
    yield "contest", [json.dumps(CONTEST).encode()], _in_file(folder / "contest.json", _contest)
    yield "weights", [json.dumps(WEIGHTS).encode()], _in_file(folder / "model.safetensors.index.json", _weights)
    yield "pins", list(PINS), _pins
    yield "references", list(REFERENCES), _reference
    yield "texts", list(TEXTS), _texts
    yield from _checkpoint(folder / "checkpoint")
    yield "plan", _plans(), _plan  # the last: it takes seconds to make them


def _in_file(path: Path, read: Callable[[str], object]) -> Read:
    def through(text: bytes) -> object:
        path.write_bytes(text)
        return read(str(path))

    return through


def _text(raw: bytes) -> str:
    """As a command line has it: bytes that are no text are surrogates there."""
    return raw.decode("utf-8", "surrogateescape")


@cache
def _plans() -> list[bytes]:
    from meshwright.capture import capture
    from meshwright.cluster import load_cluster
    from meshwright.models.reference import parse_reference
    from meshwright.planner.plan import make_plan

    reference = parse_reference("gpt?layers=2&hidden=16&heads=2&ffn=32&vocab=64&seq=8")
    program = capture(*reference.meta(4))
    cluster = load_cluster("local:2")
    pinned = (["dp=2"], ["tp=2"], ["pp=2"], ["zero=3"])
    return [make_plan(program, cluster, model=str(reference), pins=pins).to_json() for pins in pinned]


def _plan(text: bytes) -> object:
    from meshwright.explain.explain import explain
    from meshwright.plan import Plan

    plan = Plan.from_json(text)
    return str(plan), explain(plan)


def _cluster(path: str) -> object:
    from meshwright.cluster import load_cluster

    cluster = load_cluster(path)
    return str(cluster), cluster.device_count


def _profiles() -> list[bytes]:
    """A small one with tables, and one that names another."""
    from meshwright.cluster.profile_load import SHIPPED

    whole = json.loads((SHIPPED / "cpu.json").read_text())
    for name, by in whole["grids"].items():
        whole["grids"][name] = dict(list(by.items())[:1])
    for name, by in whole["scatters"].items():
        first = dict(list(by.items())[:1])
        for one in first.values():
            one["points"] = one["points"][:4]
            for part in ("ratios", "doubts"):
                if part in one:
                    one[part] = {side: values[:4] for side, values in one[part].items()}
        whole["scatters"][name] = first
    like = {key: whole[key] for key in ("schema", "name", "kind", "peaks", "memory_bytes", "reserve_bytes")}
    like |= {"memory_bandwidth": whole["memory_bandwidth"], "launch_s": whole["launch_s"], "like": "cpu"}
    like |= {"achievable": {"matmul": 0.7, "memory": 0.9}}
    return [json.dumps(whole).encode(), json.dumps(like).encode()]


def _profile(path: str) -> object:
    from meshwright.cluster import profile_load

    for cached in (profile_load.read_profile, profile_load.tables, profile_load.device_of, profile_load.profile_of):
        cached.cache_clear()
    profile = profile_load.profile_of(profile_load.device_of(path))
    return profile.matmul_s("nn", "float32", 4, 64, 64, 64), profile.host("linear")


def _contest(path: str) -> object:
    from meshwright.select.contest import load

    return load(path)


def _weights(path: str) -> object:
    from meshwright.runtime.weights.sources import SafetensorsFiles

    found = SafetensorsFiles(path)
    assert all(place.parent == Path(path).parent for place in found._places.values())
    return found


def _pins(raw: bytes) -> object:
    from meshwright.cluster import load_cluster
    from meshwright.pins.check import check_pins
    from meshwright.pins.methods import pinned_method
    from meshwright.pins.pins import pin_readings
    from meshwright.pins.stages import pipeline_pins

    cluster = load_cluster("local:8")
    texts = tuple(_text(raw).split(" and "))
    check_pins(texts, cluster)
    _, texts = pinned_method(texts)
    if not pipeline_pins(texts).pipeline:
        return pin_readings(texts, cluster.mesh((2, 4)))
    return None


def _reference(raw: bytes) -> object:
    """References to Python files and modules are left out: they run what they name."""
    from meshwright.models.reference import parse_reference

    text = _text(raw)
    name = text.partition("?")[0]
    if ":" in name.removeprefix("hf:") and not name.startswith("hf:"):
        return None
    return str(parse_reference(text))


def _texts(raw: bytes) -> object:
    from meshwright.cluster import load_cluster
    from meshwright.errors import MeshwrightError
    from meshwright.layout import Layout
    from meshwright.plan.instruction import Instruction
    from meshwright.plan.units import parse_bytes

    text = _text(raw)
    for read in (parse_bytes, Layout.parse, Instruction.parse, load_cluster):
        try:
            read(text)
        except MeshwrightError:
            continue
    return None


def _checkpoint(folder: Path) -> Iterator[tuple[str, list[bytes], Read]]:
    """Index, summary and sums of a checkpoint of two tensors; whoever changes one makes the sum of it anew."""
    from meshwright.runtime.state import folder as checkpoints
    from meshwright.runtime.state.sums import _read_sums, file_sum, text_sum

    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(bytes(200))
    index = {
        "tensors": {
            "model/a": {"dtype": "float32", "size": [4, 8], "chunks": [[[0, 0], [2, 8]], [[2, 0], [2, 8]]]},
            "optimizer/a/step": {"dtype": "float32", "size": [], "chunks": [[[], []]]},
        },
        "places": [
            {"name": "model/a", "offset": [0, 0], "number": 0, "file": "__0_0.distcp", "at": 0, "length": 64},
            {"name": "model/a", "offset": [2, 0], "number": 1, "file": "__0_0.distcp", "at": 64, "length": 64},
            {
                "name": "optimizer/a/step",
                "offset": None,
                "number": None,
                "file": "__0_0.distcp",
                "at": 128,
                "length": 8,
            },
        ],
    }
    sums = [[0, 64, 7], [64, 64, 8], [128, 8, 9]]
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "__0_0.distcp.sums").write_text(json.dumps(sums))
    summary = {
        "step": 3, "seed": 0, "batch": 4, "world_size": 1, "model": "gpt", "optimizer": "AdamW", "random": "AAAA",
        "parameters": {"a": [4, 8]}, "groups": [{"lr": 0.1, "params": ["a"]}], "numbers": [["a", "step", 3]],
        "loader": {"samples": 12, "seed": 0}, "extra": {"losses": [1.0, 2.0]}, "format": 2,
        "files": {path.name: path.stat().st_size for path in folder.iterdir()},
        "index_sum": file_sum(folder / "index.json"),
        "sums": {"__0_0.distcp.sums": file_sum(folder / "__0_0.distcp.sums")},
    }  # fmt: skip

    def read() -> object:
        found = checkpoints.read_summary(folder)
        return checkpoints.read_metadata(folder, found)

    def summed(found: object) -> None:
        if isinstance(found, dict):
            found = {key: value for key, value in found.items() if key != "sum"}
            found |= {"sum": text_sum(found)}
        (folder / "meshwright.json").write_text(json.dumps(found))

    def from_summary(text: bytes) -> object:
        (folder / "index.json").write_text(json.dumps(index))
        try:
            summed(json.loads(text))
        except (ValueError, RecursionError):
            (folder / "meshwright.json").write_bytes(text)
        return read()

    def from_index(text: bytes) -> object:
        (folder / "index.json").write_bytes(text)
        changed = {"index_sum": file_sum(folder / "index.json"), "files": summary["files"] | {"index.json": len(text)}}
        summed(summary | changed)
        return read()

    yield "summary", [json.dumps(summary).encode()], from_summary
    yield "index", [json.dumps(index).encode()], from_index
    yield "sums", [json.dumps(sums).encode()], _in_file(folder / "some.sums", lambda path: dict(_read_sums(Path(path))))
