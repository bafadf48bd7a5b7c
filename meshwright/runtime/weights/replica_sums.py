"""Gradients that were reduce-scattered but not yet summed over replicas (HSDP): this happens once a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from meshwright.cluster import Mesh
from meshwright.layout.convert import convert_gradient
from meshwright.price.buckets import Legs


class ReplicaSums:
    """The pieces that are stored, added up over the micro-batches of a step. Only collectives, which run one after the
    other, read and write them."""

    def __init__(self, legs: Mapping[str, Legs], shapes: Mapping[str, tuple[int, ...]], mesh: Mesh) -> None:
        self.legs, self.shapes, self.mesh = legs, shapes, mesh
        self.names = frozenset(name for name, (storage, between, _) in legs.items() if storage != between)
        self.pieces: dict[str, Tensor] = {}

    def add(self, found: Mapping[str, Tensor]) -> None:
        for name, piece in found.items():
            if name in self.pieces:
                self.pieces[name].add_(piece)
            else:
                self.pieces[name] = piece

    def take(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Those of them that have a gradient."""
        return {name: self.pieces.pop(name) for name in names if name in self.pieces}

    def summed(self, name: str, piece: Tensor) -> Tensor:
        """Over its replicas, by itself."""
        storage, between, _ = self.legs[name]
        return convert_gradient(piece, storage, between, self.mesh, shape=self.shapes[name])
