"""Layouts: states, conversion paths and what they cost.

Importing this needs neither torch nor numpy: `path` is imported with its first use; `collectives`, `transport`,
`threads` and `convert` need torch.
"""

from typing import TYPE_CHECKING, Any

from meshwright.layout.states import I, Layout, P, R, S, State, all_layouts, all_states
from meshwright.layout.steps import Collective, Step

if TYPE_CHECKING:
    from meshwright.layout.path import Conversion, conversion

__all__ = [
    "Collective",
    "Conversion",
    "I",
    "Layout",
    "P",
    "R",
    "S",
    "State",
    "Step",
    "all_layouts",
    "all_states",
    "conversion",
]


def __getattr__(name: str) -> Any:
    if name not in ("Conversion", "conversion"):
        raise AttributeError(name)
    from meshwright.layout import path

    return getattr(path, name)
