"""A `state_dict` that holds one rank's shards: pickling it is refused, since nothing could load the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.errors import RunError


class InPieces:
    """An attribute of such a dict, which is pickled with it; copies of the dict share it. of: what the state is of.
    todo: what to do instead."""

    def __init__(self, of: str, todo: str) -> None:
        self.of, self.todo = of, todo

    def __deepcopy__(self, memo: Mapping[int, Any]) -> InPieces:
        return self

    def __reduce__(self) -> Any:
        raise RunError(
            f"torch.save of the state_dict of {self.of}: it holds one rank's pieces",
            "whole tensors, or a checkpoint of all ranks",
            self.todo,
        )


class PiecesDict(dict[str, Any]):
    """A plain dict with such an attribute."""

    def __init__(self, state: Mapping[str, Any], in_pieces: InPieces) -> None:
        super().__init__(state)
        self.in_pieces = in_pieces
