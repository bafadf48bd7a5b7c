"""Layouts: states, conversion paths and what they cost.

Importing this needs no torch; `collectives`, `transport`, `threads` and `convert` do.
"""

from meshwright.layout.path import Conversion, conversion
from meshwright.layout.states import I, Layout, P, R, S, State, all_layouts, all_states
from meshwright.layout.steps import Collective, Step

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
