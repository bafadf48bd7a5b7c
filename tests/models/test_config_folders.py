"""A folder with config.json is a model; a hub id is one where the hub can be reached, and else refused with the fix."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from huggingface_hub import constants

from meshwright.errors import ModelError
from meshwright.models.reference import parse_reference

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    transformers.LlamaConfig(**SMALL, num_key_value_heads=2).save_pretrained(folder)
    reference = parse_reference(f"{folder}?num_hidden_layers=1", ["seq=8"])
    model, batch, _ = reference.meta(2)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.num_hidden_layers == 1
    assert model.config.num_key_value_heads == 2
    assert batch["input_ids"].shape == (2, 8)
    assert str(reference) == f"{folder}?num_hidden_layers=1&seq=8"
    assert str(parse_reference(str(reference))) == str(reference)
    with pytest.raises(ModelError, match="layers=3"):
        parse_reference(f"{folder}?layers=3")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        parse_reference(str(tmp_path))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield address


def test_a_hub_that_does_not_answer_is_not_waited_for(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.models.hub.PATIENCE_S", 0.5)
    began = time.monotonic()
    with pytest.raises(ModelError, match=rf"(?s){hub} does not answer.*hf download meta-llama/Llama-3.1-8B"):
        parse_reference("meta-llama/Llama-3.1-8B")
    assert time.monotonic() - began < 1.5


def test_a_hub_that_cannot_be_reached_is_refused_at_once(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("meta-llama/Llama-3.1-8B", "hf:meta-llama/Llama-3.1-8B"):
        with pytest.raises(ModelError, match=r"(?s)cannot be read from the hub.*refused.*hf download meta-llama/Llama"):
            parse_reference(name)


def test_a_hub_is_not_asked_where_it_must_not_be(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        parse_reference("meta-llama/Llama-3.1-8B")
    with pytest.raises(ModelError, match=r"a--b/c cannot be read from the hub"):
        parse_reference("a--b/c")


def test_a_config_in_the_cache_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--mine--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    transformers.LlamaConfig(**SMALL).save_pretrained(repository / "snapshots" / "abc")
    reference = parse_reference("mine/small")
    assert dict(reference.settings)["hidden_size"] == 32
