"""Model references: one line of text becomes a model and a batch.

llama?layers=4&hidden=256      a family with settings
llama3-8b                      a size known by name; its settings can be changed too
hf:qwen3?hidden_size=256       a model type of `transformers`, built from its config
path/to/folder                 one with a config.json of `transformers`
organisation/name              a hub id, where the hub can be reached
path/file.py:factory           a function of one's own that returns (model, batch) or (model, batch, loss)
package.module:factory
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.errors import ModelError, did_you_mean
from meshwright.models.families import FAMILIES
from meshwright.models.family import Family, Shapes
from meshwright.models.named import NAMED

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Reference:
    """A family with all its settings; prints as the text that makes it again."""

    family: Family
    settings: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        changed = [(k, v) for k, v in self.settings if self.family.defaults[k] != v]
        return self.family.name + ("?" + "&".join(f"{k}={_text(v)}" for k, v in changed) if changed else "")

    def build(self) -> nn.Module:
        """A real model; wrap in `torch.device("meta")` for one without storage."""
        return self.family.build(dict(self.settings))

    def shapes(self, batch: int) -> Shapes:
        return self.family.shapes(dict(self.settings), batch)

    def meta(self, batch: int | None = None) -> tuple[nn.Module, dict[str, Tensor], Callable[..., Tensor] | None]:
        """Model and batch without storage, and the loss if the model does not return its own; for `capture`.

        batch: samples; as many as the family has, unless given."""
        import torch

        from meshwright.models.unfilled import Unfilled

        shapes = self.shapes(self.family.batch if batch is None else batch)
        with torch.device("meta"), Unfilled():
            model = self.build()
            tensors = {n: torch.empty(s, dtype=getattr(torch, d)) for n, (s, d) in shapes.items()}
        return model, tensors, self.family.loss


def parse_reference(text: str, settings: Iterable[str] = ()) -> Reference:
    """`name?key=value&...`, with further `key=value` settings on top, none of them twice."""
    name, _, query = text.partition("?")
    family = _family(name)
    values, given = dict(family.defaults), dict[tuple[bool, str], str]()
    inside = [(part, False) for part in query.split("&") if part]
    for setting, above in [*inside, *((one, True) for one in settings)]:
        key, separator, value = setting.partition("=")
        if not separator or key not in values:
            raise _bad_setting(name, setting, key, list(values))
        values[key], before = _value(family, key, value), values[key]
        twice = given.setdefault((above, key), setting)
        if twice != setting and values[key] != before:
            raise ModelError(f"settings {twice} and {setting} of {name}", f"one value of {key}", "drop one")
    return Reference(family, tuple(values.items()))


def _family(name: str) -> Family:
    if name.startswith("hf:"):
        from meshwright.models.hf import config_family, hf_family

        kind = name.removeprefix("hf:")
        return config_family(kind) if "/" in kind else hf_family(kind)
    if ":" in name:
        from meshwright.models.factory import factory_family

        return factory_family(name)
    if name in NAMED:
        base, settings = NAMED[name]
        return replace(FAMILIES[base], name=name, defaults=FAMILIES[base].defaults | settings)
    if name not in FAMILIES and _is_config(name):
        from meshwright.models.hf import config_family

        return config_family(name)
    if name not in FAMILIES:
        if name.endswith(".py"):
            raise ModelError(f"{name} without a function", "file.py:function", f"name one: {name}:function")
        raise ModelError(
            f"unknown model {name!r}",
            f"a family ({', '.join(FAMILIES)}), a named size ({', '.join(NAMED)}), hf:TYPE, "
            "a folder with config.json, or file.py:function",
            did_you_mean(name, [*FAMILIES, *NAMED]),
        )
    return FAMILIES[name]


def _is_config(name: str) -> bool:
    """A folder with a config, or what may be a hub id. A folder without one is refused."""
    folder = os.path.isdir(name)  # False, unlike Path's, for a name that no file can have
    has_config = os.path.isfile(os.path.join(name, "config.json"))
    if folder and "/" not in name.rstrip("/") and not has_config:
        return False  # a folder here that is called like what was meant
    if folder and not has_config:
        raise ModelError(f"{name} has no config.json", "a folder that save_pretrained wrote", "name that one")
    return folder or re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None


def _bad_setting(name: str, setting: str, key: str, known: list[str]) -> ModelError:
    shown = ", ".join(known) if len(known) <= 20 else f"{', '.join(known[:20])} and {len(known) - 20} more"
    if not known:
        return ModelError(f"setting {setting!r} of {name}", "no settings: the function takes none", "leave it out")
    todo = "correct the setting" if key in known else did_you_mean(key, known, "correct the setting")
    return ModelError(f"setting {setting!r} of {name}", f"key=value with a key of {shown}", todo)


def _value(family: Family, key: str, text: str) -> Any:
    default = family.defaults[key]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(_whole(part, family.free) for part in text.split(","))
        if isinstance(default, int):
            return _whole(text, family.free)
        if isinstance(default, float):
            return _number(text, family.free)
        return _guess(text)
    except (ValueError, KeyError) as error:
        kind = "a value" if family.free else "a whole number of at least 1" if type(default) is int else "a value"
        wanted = "true or false" if isinstance(default, bool) else f"{kind}, like its default {_text(default)}"
        raise ModelError(f"setting {key}={text} of {family.name}", wanted, "correct the setting") from error


def _guess(text: str) -> Any:
    """A setting whose default does not tell its type: a number if it reads as one."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _whole(text: str, free: bool) -> int:
    value = int(text)
    if value < 1 and not free:
        raise ValueError(text)
    return value


def _number(text: str, free: bool) -> float:
    value = float(text)
    if not 0 <= value < float("inf") and not free:
        raise ValueError(text)
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
