"""Saved values that wait on the host: copied during compute, on a stream of their own, into pinned memory.

On a CPU the copies are plain ones. Pinned memory is taken once and used again in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class OffloadedTensors:
    """Values of one segment's saved list. places: where in it. leaving: on the device until their copy is done."""

    places: tuple[int, ...]
    host: list[Tensor]
    leaving: list[Tensor]
    coming: list[Tensor] = field(default_factory=list)
    done: torch.cuda.Event | None = None


class Host:
    """Memory of the host and the stream that copies run on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.free: dict[tuple[object, ...], list[Tensor]] = {}

    def offload(self, saved: list[Tensor], places: Sequence[int]) -> tuple[list[Tensor], OffloadedTensors]:
        """(what stays, what is leaving)."""
        leaving = [saved[place] for place in places]
        host = [self._buffer(tensor) for tensor in leaving]
        done = self._copy(host, leaving)
        rest = [tensor for place, tensor in enumerate(saved) if place not in places]
        return rest, OffloadedTensors(tuple(places), host, leaving, done=done)

    def release(self, parked: OffloadedTensors) -> None:
        """Nothing that runs from now on may use their memory before the copy is done."""
        self._wait(parked)
        parked.leaving.clear()

    def fetch(self, parked: OffloadedTensors) -> None:
        parked.coming = [torch.empty_like(tensor, device=self.device, pin_memory=False) for tensor in parked.host]
        parked.done = self._copy(parked.coming, parked.host)

    def back(self, rest: list[Tensor], parked: OffloadedTensors) -> list[Tensor]:
        """The whole saved list again."""
        self._wait(parked)
        found = list(rest)
        for place, tensor in zip(parked.places, parked.coming, strict=True):
            found.insert(place, tensor)
        for tensor in parked.host:
            self.free.setdefault(_key(tensor), []).append(tensor)
        rest.clear()
        parked.coming.clear()
        return found

    def waiting(self) -> list[Tensor]:
        """Memory of the host that nothing lies in now."""
        return [tensor for found in self.free.values() for tensor in found]

    def _buffer(self, tensor: Tensor) -> Tensor:
        waiting = self.free.get(_key(tensor), [])
        if waiting:
            return waiting.pop()
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=self.stream is not None
        )

    def _copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> torch.cuda.Event | None:
        if self.stream is None:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
            return None
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
            done: torch.cuda.Event = self.stream.record_event()
        return done

    def _wait(self, parked: OffloadedTensors) -> None:
        if parked.done is not None:
            torch.cuda.current_stream(self.device).wait_event(parked.done)
            parked.done = None


def _key(tensor: Tensor) -> tuple[object, ...]:
    return (tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype)
