"""A folder with config.json is a model; a hub id is one where the hub can be reached, and else refused with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

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


def test_a_hub_id_without_a_network_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub\nCheck your internet connection")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", offline)
    for name in ("meta-llama/Llama-3.1-8B", "hf:meta-llama/Llama-3.1-8B"):
        with pytest.raises(ModelError, match=r"(?s)cannot be read from the hub.*hf download meta-llama/Llama-3.1-8B"):
            parse_reference(name)
