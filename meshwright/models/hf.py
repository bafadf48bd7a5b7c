"""Models of `transformers`, built from their configs without weights: `hf:TYPE?key=value` from the type's own defaults,
a folder from its `config.json`, a hub id (`organisation/name`) from the hub's, where that can be reached.

The keys are those of its config (`hidden_size`, `text_config.hidden_size`), and `seq` for the sequence length of a
batch. An encoder-decoder gets its sequence-to-sequence head, a decoder its language-model head, an encoder its
masked-LM head, and what has none of these a classification head.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meshwright.errors import ModelError, did_you_mean
from meshwright.models.family import Family, Settings, Shapes
from meshwright.models.hub import cache_alone, unreadable

if TYPE_CHECKING:
    from torch import Tensor, nn

HEADS = (
    "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForCausalLM", "AutoModelForMaskedLM",
    "AutoModelForImageTextToText", "AutoModelForZeroShotImageClassification", "AutoModelForImageClassification",
    "AutoModelForCTC", "AutoModelForSequenceClassification",
)  # fmt: skip
LONGEST_DEFAULT = 512


def hf_family(model_type: str) -> Family:
    transformers = _transformers()
    known = list(transformers.CONFIG_MAPPING)
    if model_type not in known:
        raise ModelError(
            f"hf:{model_type} is no model type of transformers {transformers.__version__}",
            f"one of its {len(known)} types, such as gpt2, llama, bert, t5, vit",
            did_you_mean(model_type, known),
        )

    def make(changed: Settings) -> Any:
        return transformers.AutoConfig.for_model(model_type, **changed)

    return _of_config(transformers, f"hf:{model_type}", make)


def config_family(place: str) -> Family:
    """Of a folder with `config.json`, or of a hub id."""
    folder = os.path.isdir(place)
    local = folder or cache_alone(place)
    transformers = _transformers()
    try:
        found = transformers.AutoConfig.from_pretrained(place, local_files_only=local)
    except Exception as error:
        raise _unread(place, folder, error) from error

    def make(changed: Settings) -> Any:
        return type(found).from_dict(_merged(found.to_dict(), changed))

    return _of_config(transformers, place, make)


def _unread(place: str, folder: bool, error: Exception) -> ModelError:
    said = str(error).splitlines()[0][:160]
    if folder:
        expected = "a folder whose config.json transformers reads"
        return ModelError(
            f"{place}: {said}", expected, "save the model there with save_pretrained, or correct the file"
        )
    return unreadable(place, said)


def _merged(tree: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(tree)
    for key, value in changed.items():
        inner = found.get(key)
        found[key] = _merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return found


def _of_config(transformers: Any, name: str, make: Callable[[Settings], Any]) -> Family:
    """make: the config with some of its keys changed."""
    config = make({})
    head = _head(transformers, name, config)
    defaults = _flat(config.to_dict())
    # Many configs know their keys under the usual name too: `hidden_size` for T5's `d_model`.
    defaults |= {alias: defaults[key] for alias, key in config.attribute_map.items() if key in defaults}
    if "use_cache" in defaults:
        defaults["use_cache"] = False  # training keeps no keys and values for later tokens
    if head not in ("AutoModelForImageClassification", "AutoModelForCTC"):
        defaults["seq"] = min(_longest(config), LONGEST_DEFAULT)

    def build(settings: Settings) -> nn.Module:
        return _build(transformers, name, head, _config(name, make, settings, defaults))

    def shapes(settings: Settings, batch: int) -> Shapes:
        return _shapes(head, _config(name, make, settings, defaults), settings.get("seq", 0), batch)

    loss = _contrastive if head == "AutoModelForZeroShotImageClassification" else None
    return Family(name, defaults, build, shapes, loss, free=True)


def _contrastive(output: Any, *_: Any) -> Tensor:
    """CLIP's loss: in a batch of pairs, each text belongs to the image of the same number."""
    import torch
    import torch.nn.functional as F

    scores = output.logits_per_text
    own = torch.arange(scores.shape[0], device=scores.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            "hf: models need the `transformers` package", "it installed", "pip install 'meshwright[hf]'"
        ) from error
    transformers.logging.set_verbosity_error()
    return transformers


def _head(transformers: Any, name: str, config: Any) -> str:
    order = list(HEADS)
    if not getattr(config, "is_encoder_decoder", False):
        # A language model that is an encoder can be made a decoder by its config, but is not one by default.
        order = order[3:4] + order[2:3] + order[4:] if not getattr(config, "is_decoder", False) else order[2:]
    for head in order:
        mapping = getattr(transformers, head)._model_mapping
        if type(config) in mapping:
            return head
    raise ModelError(
        f"{name} has no language-model, sequence-to-sequence, masked-LM or classification head",
        "a model type that has one",
        "name another type, or write a factory: file.py:function",
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Settings:
    """Config keys with their defaults; those of nested configs as `text_config.hidden_size`."""
    found: Settings = {}
    for key, value in tree.items():
        if not isinstance(key, str) or key in ("id2label", "label2id"):
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(type(item) is int for item in value):
            found[prefix + key] = tuple(value)
        elif not isinstance(value, list):
            found[prefix + key] = value
    return found


def _config(name: str, make: Callable[[Settings], Any], settings: Settings, defaults: Settings) -> Any:
    changed: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "seq" or (value == defaults[key] and key != "use_cache"):
            continue
        *path, last = key.split(".")
        place = changed
        for part in path:
            place = place.setdefault(part, {})
        place[last] = list(value) if isinstance(value, tuple) else value
    try:
        config = make(changed)
    except Exception as error:
        raise ModelError(f"{name} with {changed}: {error}", "settings its config accepts") from error
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config


def _build(transformers: Any, name: str, head: str, config: Any) -> nn.Module:
    classes = getattr(transformers, head)._model_mapping[type(config)]
    if isinstance(classes, tuple) and config.architectures is None:
        config.architectures = [classes[0].__name__]  # of several heads of one kind (DeiT's), the first
    try:
        model: nn.Module = getattr(transformers, head).from_config(config)
    except Exception as error:
        raise ModelError(
            f"{name} cannot be built: {type(error).__name__}: {error}",
            "settings that fit each other",
            "correct the settings",
        ) from error
    return model.train()


def _longest(config: Any) -> int:
    text = getattr(config, "text_config", config)
    for key in ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx"):
        found = getattr(text, key, None)
        if isinstance(found, int) and found > 0:
            return found
    return LONGEST_DEFAULT


def _shapes(head: str, config: Any, seq: int, batch: int) -> Shapes:
    made: Callable[[Any, int, int], Shapes] = _BATCHES.get(head, _text)
    return made(config, seq, batch)


def _text(config: Any, seq: int, batch: int) -> Shapes:
    return {"input_ids": ((batch, seq), "int64"), "labels": ((batch, seq), "int64")}


def _classified_text(config: Any, seq: int, batch: int) -> Shapes:
    return {"input_ids": ((batch, seq), "int64"), "labels": ((batch,), "int64")}


def _images(config: Any, seq: int, batch: int) -> Shapes:
    return {"pixel_values": _pixels(config, batch), "labels": ((batch,), "int64")}


def _pixels(config: Any, batch: int) -> tuple[tuple[int, ...], str]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    return (batch, getattr(vision, "num_channels", 3), height, width), "float32"


def _speech(config: Any, seq: int, batch: int) -> Shapes:
    features = (batch, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500))
    return {"input_features": (features, "float32"), "labels": ((batch, seq), "int64")}


def _waves(config: Any, seq: int, batch: int) -> Shapes:
    return {"input_values": ((batch, 16000), "float32"), "labels": ((batch, 32), "int64")}


def _images_and_text(config: Any, seq: int, batch: int) -> Shapes:
    return {
        "input_ids": ((batch, seq), "int64"),
        "pixel_values": _pixels(config, batch),
        "labels": ((batch, seq), "int64"),
    }


def _pairs(config: Any, seq: int, batch: int) -> Shapes:
    return {"input_ids": ((batch, seq), "int64"), "pixel_values": _pixels(config, batch)}


_BATCHES: dict[str, Callable[[Any, int, int], Shapes]] = {
    "AutoModelForSequenceClassification": _classified_text,
    "AutoModelForImageClassification": _images,
    "AutoModelForSpeechSeq2Seq": _speech,
    "AutoModelForCTC": _waves,
    "AutoModelForImageTextToText": _images_and_text,
    "AutoModelForZeroShotImageClassification": _pairs,
}
