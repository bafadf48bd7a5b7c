"""bench/published.py runs on tables that nobody has seen."""

from __future__ import annotations

import csv
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import published
from gpu_names import device_name
from published import score_tables, show_sets
from published_rows import case_of
from row_tables import read_table

ROW = {
    "set": "mine", "row_id": "0", "family": "llama", "layers": "4", "hidden": "1024", "heads": "16", "kv_heads": "8",
    "ffn": "4096", "vocab": "32000", "seq": "2048", "gated_mlp": "true", "gpu": "H100-80GB", "gpus_per_node": "8",
    "num_gpus": "8", "tp": "2", "pp": "1", "dp": "4", "zero": "1", "micro_batch": "2", "global_batch": "32",
    "recompute": "none", "precision": "bf16", "attention": "flash", "step_time_s": "0.1", "peak_mem_GB": "5",
    "status": "ok", "mfu": "0.3",
}  # fmt: skip
NEMO = ("dgxc_x", "mcore_x")
KEYS = (
    *("rows", "mean_abs_error", "bias", "rank_correlation", "oom_agreement", "median_regret", "worst_regret"),
    *("memory_error", "not_modelled"),
)


def _score(path: Path, rows: list[dict[str, str]]) -> dict[str, object]:
    table = path / "table.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    found = score_tables([table], False, 1)
    show_sets(found)
    sets: dict[str, object] = found["sets"]
    return sets


def test_rows_that_cannot_be_modelled_are_listed_and_the_rest_scored(tmp_path: Path) -> None:
    rows = [
        ROW,
        ROW | {"row_id": "1", "micro_batch": "4", "step_time_s": "0.09"},
        ROW | {"row_id": "2", "gpu": "TPU-v4"},
        ROW | {"row_id": "3", "layers": ""},
        ROW | {"row_id": "4", "tp": "3"},
        ROW | {"row_id": "5", "heads": "many"},
        ROW | {"row_id": "6", "pp": "8", "tp": "1", "dp": "1", "status": "crash", "step_time_s": "", "mfu": ""},
        ROW | {"row_id": "7", "micro_batch": "4096", "global_batch": "16384", "status": "oom", "step_time_s": ""},
        ROW | {"row_id": "8", "step_time_s": "fast"},
        ROW | {"row_id": "9", "peak_mem_GB": "-3"},
        ROW | {"row_id": "10", "micro_batch": "0"},
        ROW | {"row_id": "11", "num_gpus": "-8"},
        ROW | {"row_id": "12", "seq": "nan"},
        {"set": "other", "row_id": "0"},
    ]
    found = _score(tmp_path, rows)
    mine, other = found["mine"], found["other"]
    assert isinstance(mine, dict)
    assert isinstance(other, dict)
    assert all(key in mine for key in KEYS)
    assert mine["rows"] == 13
    listed = [text.partition(":")[0] for text in mine["not_modelled"]]
    assert listed == [f"row {number}" for number in (2, 3, 4, 5, 8, 9, 10, 11, 12)]
    assert "TPU-v4" in mine["not_modelled"][0]
    assert mine["oom_agreement"] == 1.0
    assert 0 <= mine["median_regret"] <= mine["worst_regret"]
    assert len(other["not_modelled"]) == 1


def test_spellings_of_one_value_are_one(tmp_path: Path) -> None:
    same = [
        {"precision": "BF16"}, {"precision": "bfloat16"}, {"precision": "bf16-mixed"}, {"gpu": "NVIDIA H100 SXM5 80GB"},
        {"gpu": "h100"}, {"attention": "SDPA"}, {"schedule": "interleaved-1F1B"}, {"recompute": "No"},
        {"family": "LLaMA"}, {"family": "Qwen3"}, {"precision": "amp_bf16"}, {"cp_comm": "p2p"},
    ]  # fmt: skip
    found = _score(tmp_path, [ROW, *(ROW | {"row_id": str(i)} | change for i, change in enumerate(same, 1))])["mine"]
    assert isinstance(found, dict)
    assert found["not_modelled"] == []
    assert len({step for _, step in found["steps"]}) == 1


def test_what_other_columns_tell_may_be_left_out(tmp_path: Path) -> None:
    """The data-parallel ranks, and of devices with fewer than eight in a host how many are."""
    small = ROW | {"gpu": "GH200-96GB", "gpus_per_node": "4"}
    for row, name in ((ROW, "dp"), (small, "gpus_per_node")):
        found = _score(tmp_path, [row, row | {"row_id": "1", name: ""}])["mine"]
        assert isinstance(found, dict)
        assert found["not_modelled"] == []
        assert len({step for _, step in found["steps"]}) == 1


def test_a_byte_order_mark_and_blanks_around_columns_and_cells_are_nothing(tmp_path: Path) -> None:
    table, text = tmp_path / "table.csv", ", ".join(ROW) + "\n\n" + " , ".join(ROW.values()) + "\n"
    table.write_text(text, encoding="utf-8-sig")
    found = score_tables([table], False, 1)["sets"]
    assert list(found) == ["mine"]
    assert found["mine"]["not_modelled"] == []


def test_a_reason_says_what_was_expected(tmp_path: Path) -> None:
    found = _score(tmp_path, [ROW | {"ep": "3"}])["mine"]
    assert isinstance(found, dict)
    assert found["not_modelled"] == ["row 0: ep=3 of a model without experts; expected a mixture of experts"]


def test_float8_is_not_modelled_where_there_are_no_units(tmp_path: Path) -> None:
    rows = [ROW | {"precision": "fp8", "gpu": "A100-80GB", "row_id": one, "status": one} for one in ("ok", "oom")]
    found = _score(tmp_path, rows)["mine"]
    assert isinstance(found, dict)
    assert len(found["not_modelled"]) == 2
    assert all("precision=fp8 on A100-SXM-80GB" in one for one in found["not_modelled"])


def test_stages_are_interleaved_where_a_row_does_not_say_and_its_framework_does(tmp_path: Path) -> None:
    """The first and last stage may have no layer; without interleaving half of the step is a bubble."""
    row = ROW | {"layers": "14", "num_gpus": "32", "tp": "8", "pp": "4", "dp": "1", "global_batch": "8"}
    names = ("llama3_x", "mcore_x", "megascale_x")
    sets = _score(tmp_path, [row | {"set": name, "vpp": vpp} for name in names for vpp in ("", "4")])
    llama, core, plain = ([step for _, step in one["steps"]] for one in sets.values())
    assert llama[0] == llama[1]
    assert core[0] == core[1]
    assert plain[0] > 1.2 * plain[1]


def test_gradients_of_llama_3_are_reduced_once_a_step_whatever_a_row_calls_it(tmp_path: Path) -> None:
    """They are added up over micro-batches, and parameters stay gathered (its paper, section 3.3.2)."""
    row = ROW | {"layers": "14", "num_gpus": "64", "tp": "8", "pp": "4", "dp": "2", "global_batch": "32"}
    sets = _score(tmp_path, [row | {"set": "llama3_x", "zero": zero, "row_id": zero} for zero in "123"])
    assert len({step for _, step in sets["llama3_x"]["steps"]}) == 1  # type: ignore[index]


def test_habits_are_those_of_the_code_behind_a_row() -> None:
    """Composer's tables of A100 are older than its H100 ones; experts that drop no row are not balanced."""
    rows = [ROW | {"set": "mosaic_mpt", "gpu": gpu} for gpu in ("A100-80GB", "H100-80GB")]
    assert [case_of(row).given.attention for row in rows] == ["triton", "flash2"]
    routed = ROW | {"num_experts": "8", "experts_per_token": "2", "expert_ffn": "1024", "ep": "4", "head_dim": "128"}
    even, skewed = (case_of(routed | {"note": note}) for note in ("", "dropless"))
    assert (even.given.skew, skewed.given.skew > 1) == (0.0, True)
    assert even.model.head_size == 128


def test_recipes_of_nemo_in_float8_reduce_gradients_in_half_precision(tmp_path: Path) -> None:
    row = ROW | {"set": "dgxc_x", "num_gpus": "64", "dp": "32", "global_batch": "64"}
    sets = _score(tmp_path, [row | {"precision": kind, "set": name} for kind in ("bf16", "fp8") for name in NEMO])
    (wide, narrow), (plain_wide, plain_narrow) = ([step for _, step in sets[name]["steps"]] for name in NEMO)  # type: ignore[index]
    assert wide == plain_wide
    assert narrow < plain_narrow


def test_sizes_and_descriptions_that_can_not_be_are_reasons(tmp_path: Path) -> None:
    changes = [{"gpus_per_node": "0"}, {"pp": "0"}, {"vpp": "-1"}, {"mla": "q_lora=1536"}, {"gpu": "A800-PCIe-40GB"}]
    found = _score(tmp_path, [ROW | {"row_id": str(i)} | change for i, change in enumerate(changes)])["mine"]
    assert isinstance(found, dict)
    assert found["not_modelled"] == [
        "row 0: gpus_per_node is 0, expected a whole number from 1 to 10000000",
        "row 1: pp is 0, expected a whole number from 1 to 10000",
        "row 2: vpp is -1, expected a whole number from 1 to 10000",
        "row 3: mla is 'q_lora=1536', without kv_lora, qk_nope, qk_rope",
        "row 4: unknown GPU A800-PCIe-40GB",
    ]


def test_what_can_not_be_is_a_reason_and_never_taken_for_something_else(tmp_path: Path) -> None:
    changes = [
        {"tp": "1.5"}, {"layers": "1e18"}, {"num_experts": "9" * 20}, {"peak_mem_GB": "1e-320"}, {"tied": "maybe"},
        {"attention": "?"}, {"schedule": "?"}, {"status": "?"}, {"kv_heads": "3"},
        {"num_experts": "2", "experts_per_token": "4"}, {"stage_layers": "2|2"}, {"stage_offload": "0/0/7/0"},
        {"recompute": "?"}, {"precision": "int3"}, {"mfu": "nan"},
    ]  # fmt: skip
    found = _score(tmp_path, [ROW, *(ROW | {"row_id": str(i)} | change for i, change in enumerate(changes))])["mine"]
    assert isinstance(found, dict)
    assert len(found["not_modelled"]) == len(changes)
    for (name, value), text in zip((list(one.items())[-1] for one in changes), found["not_modelled"], strict=True):
        assert value[:20] in text or name in text, text


def test_tables_that_can_not_be_read_are_listed_and_others_scored(tmp_path: Path) -> None:
    head, cells = ",".join(ROW), ",".join(ROW.values())
    bad = {
        "empty": b"", "rowless": head.encode(), "twice": f"{head},tp\n{cells},2\n".encode(),
        "wide": f"{head}\n{cells}\n".encode("utf-16"), "binary": bytes(range(256)),
    }  # fmt: skip
    for name, content in bad.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
    (tmp_path / "good.csv").write_bytes(f"{head},note\n{cells},\n{cells},caf\xe9\n{cells},,over\n".encode("latin-1"))
    tables = [tmp_path / f"{name}.csv" for name in (*bad, "missing", "good")]
    found = score_tables(tables, False, 1)["sets"]
    show_sets({"sets": found})
    assert list(found) == [*bad, "missing", "mine"]
    assert all(len(found[name]["not_modelled"]) == 1 for name in (*bad, "missing"))
    assert (found["mine"]["timed_rows"], len(found["mine"]["not_modelled"])) == (1, 2)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("h100_sxm", "h100"),
        ("A100-PCIE-80GB", "a100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-40", "a100-40gb"),
        ("H100 80 GB", "h100"),
        ("B200-180GB", "b200"),
        ("RTX PRO 6000 Server Edition", "rtx-pro-6000"),
        ("A100-PCIe-40GB", "a100-pcie-40gb"),
        ("A100 40GB PCIe", "a100-pcie-40gb"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("A800-PCIe-80GB", None),
        ("H800", "h800"),
        ("H800-PCIe", None),
        ("H100 NVL", "h100-nvl"),
        ("NVIDIA H100-NVL-94GB", "h100-nvl"),
        ("H200-NVL", "h200-nvl"),
        ("H200-NVL4", None),
        ("GB200-NVL72", "gb200"),
        ("H20-96GB", "h20"),
        ("H20-141GB", None),
        ("Tesla T4", "t4"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("V100-PCIe-16GB", "v100-pcie"),
        ("Tesla V100S-PCIE-32GB", None),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("P100-SXM2-16GB", None),
        ("RTX-A6000", "rtx-a6000"),
        ("A6000", "a6000"),
        ("NVIDIA RTX A6000 48GB", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("RTX A6000 Ada", None),
        ("Quadro RTX 6000", None),
        ("NVIDIA A40-PCIE-48GB", "a40"),
        ("L40-PCIe", "l40"),
        ("L40S", "l40s"),
        ("NVIDIA A10", "a10"),
        ("A10G", "a10g"),
        ("AMD Instinct MI250X", "mi250x"),
        ("MI250X-128GB", None),
        ("MI325X-256GB", "mi325x"),
        ("GH200-144GB", None),
        ("", None),
    ],
)
def test_a_gpu_has_many_names_and_one_size(name: str, device: str | None) -> None:
    assert device_name(name) == device


def test_a_table_without_the_columns_is_no_crash(tmp_path: Path) -> None:
    found = _score(tmp_path, [{"colour": "red"}, {"colour": "blue"}])
    only = found["table"]
    assert isinstance(only, dict)
    assert (only["rows"], len(only["not_modelled"]), only["mean_abs_error"]) == (2, 2, None)


def test_a_row_that_its_framework_refuses_is_taken_to_fail(tmp_path: Path) -> None:
    """nanotron wants as many micro-batches as stages, less one, and a block for each stage."""
    row = ROW | {"set": "hf_mine", "layers": "16", "vocab": "131072", "tp": "1", "step_time_s": "", "mfu": ""}
    rows = [
        row | {"pp": "4", "dp": "2", "micro_batch": "1", "global_batch": "4", "status": "crash"},
        row | {"pp": "16", "dp": "1", "num_gpus": "16", "micro_batch": "1", "status": "crash"},
        row | {"pp": "4", "dp": "2", "micro_batch": "1", "global_batch": "8", "status": "ok"},
    ]
    found = _score(tmp_path, rows)["hf_mine"]
    assert isinstance(found, dict)
    assert (found["oom_agreement"], found["not_modelled"]) == (1.0, [])


def test_hosts_of_several_types_are_priced(tmp_path: Path) -> None:
    row = ROW | {
        "set": "sailor_mine", "gpu": "mixed", "tp": "8", "pp": "2", "dp": "2", "zero": "0", "num_gpus": "32",
        "global_batch": "64", "precision": "fp32", "attention": "unfused", "step_time_s": "60",
        "device_types": "RTX-3090x8+RTX-2080x8|Titan-RTXx8+RTX-2080x8",
    }  # fmt: skip
    rows = [
        row,
        row | {"row_id": "1", "device_types": "RTX-2080x8+RTX-2080x8|Titan-RTXx8+RTX-2080x8"},
        row | {"row_id": "2", "device_types": "RTX-3090x8|Titan-RTXx8"},
        row | {"row_id": "3", "device_types": "RTX-3090|Titan-RTXx8"},
        row | {"row_id": "4", "device_types": ""},
    ]
    found = _score(tmp_path, rows)["sailor_mine"]
    assert isinstance(found, dict)
    (_, slow), (_, fast) = found["steps"]
    assert slow > 2 * fast  # one host behind 0.115 GB/s
    assert [text.partition(":")[0] for text in found["not_modelled"]] == ["row 2", "row 3", "row 4"]


def test_runs_that_nothing_was_fitted_on_are_modelled_and_near_where_they_are_said_to_be() -> None:
    rows = read_table(Path(published.__file__).parent / "outside_runs.csv")
    assert all(row["source_short"] for row in rows)
    assert all(not case_of(row).refused for row in rows)
    few = [row for row in rows if row["set"] == "megascale" and int(row["num_gpus"]) <= 1024]
    assert len(few) == 4
    assert max(abs(published.priced(row).error or 0.0) for row in few) < 0.03


@pytest.mark.parametrize("bench", ["published", "kernels"])
@pytest.mark.parametrize(("place", "said"), [("nope/x.json", "no folder"), ("", "a folder")])
def test_a_result_that_could_not_be_written_is_refused_before_the_work(
    bench: str, place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [bench, str(tmp_path / "t.csv"), "--json", str(tmp_path / place)])
    with pytest.raises(SystemExit, match=said):
        import_module(bench).main()


@pytest.mark.parametrize(
    ("text", "rows"),
    [(None, 0), ("", 0), (",".join(ROW), 0), ("a,b\n1,2\n", 1), (",".join(ROW) + "\n" + ",".join(ROW.values()), 1)],
)
def test_the_exit_status_says_whether_a_row_was_scored(
    text: str | None, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = tmp_path / "mine.csv", tmp_path / "out.json"
    if text is not None:
        table.write_text(text)
    monkeypatch.setattr(sys, "argv", ["published.py", str(table), "--json", str(out)])
    assert published.main() == (0 if text and "llama" in text else 1)
    assert json.loads(out.read_text())["sets"]["mine"]["rows"] == rows
