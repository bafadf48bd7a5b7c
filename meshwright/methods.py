"""Methods of early nouns that later packages implement.

A Plan prints, explains and prices itself, and all of that is written in packages that stand after `plan`. The facade
says where; so no package imports one that comes after it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES: dict[str, str] = {}
"""By name, such as `Plan.explain`: the module and the function, `module:function`. Filled by `meshwright/__init__`."""


def method(name: str) -> Any:
    """The function that implements a method, imported when it is first called."""
    module, _, function = HOMES[name].partition(":")
    return getattr(import_module(module), function)
