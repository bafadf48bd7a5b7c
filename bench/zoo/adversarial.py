"""Small modules written to be hard: what they do is legal PyTorch, and easily lost by a system that captures graphs."""

from __future__ import annotations

from bench.zoo import (
    adversarial_autograd,
    adversarial_layers,
    adversarial_ops,
    adversarial_python,
    adversarial_state,
    adversarial_surroundings,
)
from bench.zoo.entry import Entry

ENTRIES: list[Entry] = [
    *adversarial_state.ENTRIES,
    *adversarial_python.ENTRIES,
    *adversarial_autograd.ENTRIES,
    *adversarial_ops.ENTRIES,
    *adversarial_layers.ENTRIES,
    *adversarial_surroundings.ENTRIES,
]
