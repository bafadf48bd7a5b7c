"""All entries by name. A list is imported when its models are asked for: its package may not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from bench.zoo.entry import Entry

SOURCES: Mapping[str, str] = {
    "transformers": "from_transformers",
    "timm": "from_timm",
    "diffusers": "from_diffusers",
    "torchvision": "from_torchvision",
    "x-transformers": "from_x_transformers",
    "peft": "from_peft",
    "open_clip": "from_open_clip",
    "torch_geometric": "from_torch_geometric",
    "adversarial": "adversarial",
}

PACKAGES: Mapping[str, str] = {name: name.replace("-", "_") for name in SOURCES} | {"adversarial": "torch"}
"""What a source imports."""


def entries_of(source: str) -> dict[str, Entry]:
    found: list[Entry] = import_module(f"bench.zoo.{SOURCES[source]}").ENTRIES
    names = {entry.name: entry for entry in found}
    assert len(names) == len(found), f"two of {source} have one name"
    return names


def names_of(source: str) -> list[str]:
    return list(entries_of(source))


def entry_of(name: str) -> Entry:
    """`timm:resnet18`: the entry of that name."""
    return entries_of(name.partition(":")[0])[name]
