"""Where a figure of a shipped device comes from, followed to the measurement or the assumption that it began with."""

from __future__ import annotations

import re
from typing import Any

from meshwright.cluster.hosts import ALIASES
from meshwright.cluster.profile_load import read_profile, shipped

FROM = " <- "
"""Stands in a note before where a figure comes from."""
_AS = re.compile(r"\bas (?:measured on an? )?([\w-]+)")


def origin(profile: str, key: str) -> list[str]:
    """`RTX-4090: assumption: as RTX-PRO-6000-Server`, and then where that one has it from, and so on."""
    found: dict[str, str] = {}
    while profile not in found and key in sources_of(profile):
        found[profile] = str(sources_of(profile)[key])
        profile = next((other for word in _AS.findall(found[profile]) if (other := shipped_name(word))), "")
    return [f"{device}: {source}" for device, source in found.items()]


def sources_of(profile: str) -> dict[str, Any]:
    return dict(read_profile(profile)["sources"]) if profile else {}


def shipped_name(name: str) -> str:
    """A shipped device by one of its names; nothing where it is none."""
    return ({each.lower(): each for each in shipped()} | ALIASES).get(name.lower(), "")
