"""Model references: text in, model and batch out, and one clear message for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from meshwright.capture import capture
from meshwright.errors import ModelError
from meshwright.models.families import FAMILIES
from meshwright.models.named import NAMED
from meshwright.models.reference import parse_reference

MILLIONS = {
    "gpt2": 124.4, "gpt2-medium": 354.8, "gpt2-xl": 1557.6, "gpt3-175b": 174_600, "gpt-350m": 355, "gpt-39b": 39_100,
    "llama3-8b": 8030.3, "llama3-70b": 70_553.7, "llama3-405b": 405_853.4, "mixtral-8x7b": 46_702.8,
    "bert-large": 335, "t5-large": 737.7, "vit-large": 304.3, "resnet50": 25.6,
    "moe-380m": 380, "moe-690m": 690, "moe-1.3b": 1300, "moe-2.4b": 2400, "moe-10b": 10_000, "moe-27b": 27_000,
    "moe-70b": 70_000, "wresnet-250m": 250, "wresnet-500m": 500, "wresnet-1b": 1000, "wresnet-2b": 2000,
    "wresnet-4b": 4000, "wresnet-6.8b": 6800, "wresnet-13b": 13_000,
}  # fmt: skip
"""Parameters as published, in millions; the ladders' names are round figures."""


@pytest.mark.parametrize("name", MILLIONS)
def test_named_sizes_have_the_published_parameters(name: str) -> None:
    model, _, _ = parse_reference(name).meta(1)
    found = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    tolerance = 0.1 if name.startswith(("moe-", "wresnet-")) else 0.01
    assert found == pytest.approx(MILLIONS[name], rel=tolerance)


@pytest.mark.parametrize("name", [*FAMILIES, *NAMED])
def test_a_reference_prints_as_what_makes_it_again(name: str) -> None:
    family = parse_reference(name).family
    key = next(key for key, value in family.defaults.items() if type(value) is int)
    reference = parse_reference(name, [f"{key}=97"])
    assert str(parse_reference(str(reference))) == str(reference) == f"{name}?{key}=97"


def test_settings_are_typed() -> None:
    reference = parse_reference("llama?layers=2&tied=false", ["rope_base=1e4"])
    assert dict(reference.settings)["tied"] is False
    assert dict(reference.settings)["rope_base"] == 10000.0
    assert dict(parse_reference("resnet?blocks=1,2").settings)["blocks"] == (1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lama", r"(?s)unknown model 'lama'.*did you mean llama"),
        ("gpt?layer=2", r"(?s)setting 'layer=2' of gpt.*did you mean layers"),
        ("gpt?layers", "key=value"),
        ("gpt?layers=0", r"(?s)layers=0 of gpt.*a whole number of at least 1, like its default 12"),
        ("gpt?layers=two", "layers=two of gpt"),
        ("gpt?tied=maybe", "true or false"),
        ("gpt?dropout=-1", "dropout=-1 of gpt"),
        ("gpt?hidden=100&heads=3", "hidden divisible by heads"),
        ("llama?heads=4&kv_heads=3", "heads divisible by kv_heads"),
        ("moe?top=9", "top at most experts"),
        ("moe?ffn=12", "ffn a multiple of 8"),
        ("vit?image=30", "image divisible by patch"),
        ("unet?image=30", "image a multiple of 8"),
        ("amoebanet?layers=4", "layers a multiple of 3"),
        ("hf:gpt22", r"(?s)hf:gpt22 is no model type.*did you mean gpt2"),
        ("hf:gpt2?n_layers=2", r"(?s)setting 'n_layers=2'.*did you mean n_layer"),
        ("hf:sam", "has no language-model"),
        ("nowhere.py:make", r"no file nowhere\.py"),
        ("no.such.module:make", "no module 'no.such.module'"),
        ("math:make", "math has no function 'make'"),
        ("math:sqrt", "TypeError"),
        (":make", "Empty module name"),
        ("model.py", r"model\.py without a function"),
    ],
)
def test_bad_references_get_one_message(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_reference(text).meta(2)


FACTORY = """
import torch
from torch import nn
def with_loss():
    return nn.Linear(4, 2), (torch.zeros(3, 4),), lambda y, x: y.square().mean()
def shapes():
    return nn.Linear(4, 2), {"input": (3, 4)}
def typed():
    return nn.Embedding(5, 2), {"input": ((3, 4), torch.int64)}, lambda y, x: y.sum()
def labelled():
    return nn.Linear(4, 2), (torch.zeros(3, 4), ((3,), torch.int64)), nn.CrossEntropyLoss()
def wrong():
    return nn.Linear(4, 2)
def of_a_class():
    return nn.Linear, (torch.zeros(3, 4),)
def of_text():
    return "linear", (torch.zeros(3, 4),)
def single():
    return (nn.Linear(4, 2),)
def text_loss():
    return nn.Linear(4, 2), (torch.zeros(3, 4),), "mse"
def odd():
    return nn.Linear(4, 2), {"input": "many"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_model.py"
    path.write_text(FACTORY)
    return path


def test_a_factory_gives_model_batch_and_loss(file: Path) -> None:
    reference = parse_reference(f"{file}:with_loss")
    assert reference.shapes(6) == {"input": ((6, 4), "float32")}
    program = capture(*reference.meta(6))
    assert program.batch == 6
    assert str(reference) == f"{file}:with_loss"
    assert reference.build().weight.device == torch.device("cpu")
    assert parse_reference(f"{file}:typed").shapes(2) == {"input": ((2, 4), "int64")}
    assert parse_reference(f"{file}:labelled").shapes(2) == {"input": ((2, 4), "float32"), "target": ((2,), "int64")}
    assert capture(*parse_reference(f"{file}:labelled").meta(2)).batch_varies
    assert capture(*reference.meta()).batch == 3, "the rows of its own batch"


def test_a_factory_whose_model_returns_no_loss(file: Path) -> None:
    with pytest.raises(ModelError, match=r"(?s)shape \(batch, 2\).*pass `loss=`"):
        capture(*parse_reference(f"{file}:shapes").meta(2))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "returned a Linear"),
        ("odd", "for the batch entry 'input'"),
        ("missing", "one of .*with_loss"),
        ("of_a_class", "(?s)returned the class Linear as the model.*an nn.Module.*return an instance of it"),
        ("of_text", "returned the text 'linear' as the model"),
        ("single", "returned a tuple of 1"),
        ("text_loss", "(?s)returned the text 'mse' as the loss.*a callable"),
    ],
)
def test_bad_factories(file: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_reference(f"{file}:{name}").meta(2)


def test_transformers_types_are_built_from_their_config() -> None:
    model, batch, _ = parse_reference("hf:gpt2?n_layer=2&n_embd=32&n_head=4&vocab_size=64&seq=8").meta(3)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {"input_ids": (3, 8), "labels": (3, 8)}
    heads = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "vit": "ViTForImageClassification"}
    for name, kind in heads.items():
        assert type(parse_reference(f"hf:{name}?num_hidden_layers=1").meta(1)[0]).__name__ == kind


@pytest.mark.parametrize(
    "name", ["a" * 5000, "a" * 5000 + ".py:model", "hf:" + "a" * 3000 + "/b", "gpt\0", "a/" * 3000]
)
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    with pytest.raises(ModelError):
        parse_reference(name)


def test_a_file_may_import_its_neighbours_as_where_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a_model.py").write_text("from torch import nn\nLAYER = nn.Linear\n")
    text = "import torch\nimport neighbour_of_a_model as n\ndef make():\n    return n.LAYER(3, 2), {'input': (4, 3)}, "
    (file := tmp_path / "of_two_files.py").write_text(text + "lambda out, input: out.sum()\n")
    found = parse_reference(f"{file}:make")
    assert found.meta(4)[1]["input"].shape == (4, 3)


def test_a_forgotten_loss_is_named(tmp_path: Path) -> None:
    text = "import torch\ndef make():\n    return torch.nn.Linear(3, 2), (torch.ones(4, 3), torch.ones(4))\n"
    (file := tmp_path / "without_a_loss.py").write_text(text)
    with pytest.raises(ModelError) as caught:
        parse_reference(f"{file}:make")
    assert "a batch of 2 entries" in str(caught.value)
    assert "one for each of the 1 argument of forward (input)" in str(caught.value)
    assert "return (model, batch, loss)" in str(caught.value)


def test_a_setting_that_is_given_twice_is_refused_where_its_values_differ() -> None:
    assert parse_reference("gpt?layers=4", ["layers=8", "layers=8"]) == parse_reference("gpt?layers=8")
    for text, settings in (("gpt?layers=4&layers=8", []), ("gpt", ["layers=4", "layers=8"])):
        with pytest.raises(ModelError, match="settings layers=4 and layers=8 of gpt"):
            parse_reference(text, settings)
