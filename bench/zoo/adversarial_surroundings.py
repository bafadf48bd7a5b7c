"""What forward asks of the process around it, and state that it keeps in unusual places of Python."""

from __future__ import annotations

import itertools
import random
import secrets
import time
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.zoo.hard import WIDTH, Hard, entry, vectors

LEVEL = ContextVar("LEVEL", default=0)


class Compiling(Hard):
    """Another path where a compiler is at work."""

    def between(self, x: Tensor) -> Tensor:
        return 5 * x if torch.compiler.is_compiling() or torch.jit.is_tracing() else x.sin()


class AcrossRanks(Hard):
    """Statistics over ranks, where there are ranks."""

    def between(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(mean)
            mean = mean / (2 * dist.get_world_size())
        return x - mean


class PerRank(Hard):
    """A scale by the number of processes, which it asks for without asking whether there are any."""

    def between(self, x: Tensor) -> Tensor:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return x.relu() / ranks


class Seeded(Hard):
    """The same noise in every step, by a seed."""

    def between(self, x: Tensor) -> Tensor:
        torch.manual_seed(5)
        return x + 0.1 * torch.randn(2 * WIDTH)


class Cycled(Hard):
    """An iterator that moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = itertools.cycle((0.5, 1.0, 2.0))

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * next(self.scales)


@lru_cache
def table(size: int) -> Tensor:
    return torch.linspace(0, 1, size).cos()


class Memoised(Hard):
    """A table under `lru_cache`."""

    def between(self, x: Tensor) -> Tensor:
        return x * table(x.shape[-1])


class Temperature(Hard):
    """A number that the batch brings along as a tensor without dims."""

    def forward(self, x: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.first(x).relu()) / temperature, y)


class Configured(Hard):
    """A configuration that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(scale=1.0)

    def between(self, x: Tensor) -> Tensor:
        self.config.scale *= 0.9
        return x.relu() * self.config.scale


class ByClass(Hard):
    """Branches on classes: of a tensor, a parameter, a size."""

    def between(self, x: Tensor) -> Tensor:
        plain = type(x) is Tensor and type(self.first.weight) is nn.Parameter and isinstance(x.shape[0], int)
        return x.relu() if plain else 3 * x


class FromSystem(Hard):
    """Random numbers of the operating system."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * (0.5 + secrets.randbelow(100) / 100)


class LocalImport(Hard):
    """Random numbers from a function that forward imports itself."""

    def between(self, x: Tensor) -> Tensor:
        from random import random as drawn

        return x.relu() * drawn()


class OwnGenerator(Hard):
    """A generator made in each forward."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * random.Random().random()


class Clock(Hard):
    """Anneals with the time of day."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * (1 + time.localtime().tm_sec)


class DefaultArgument(Hard):
    """A list in a default argument."""

    def between(self, x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
        seen.append(1)
        return x.relu() * len(seen)


class ContextCounter(Hard):
    """A counter in a context variable."""

    def between(self, x: Tensor) -> Tensor:
        LEVEL.set(LEVEL.get() + 1)
        return x.relu() * LEVEL.get()


class Schedule:
    """Warms up, one call at a time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return self.calls / 10


class Scheduled(Hard):
    """A schedule object that forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * self.schedule()


class Swallowing(Hard):
    """A number taken from the data, with a way out that eager never takes."""

    def between(self, x: Tensor) -> Tensor:
        scale = 1.0
        with suppress(Exception):
            scale = float(x.detach().numpy().max())
        return x.relu() * scale


class GradMode(Hard):
    """Branches on whether gradients are wanted, and on what has them."""

    def between(self, x: Tensor) -> Tensor:
        wanted = torch.is_grad_enabled() and x.requires_grad and not x.is_leaf and self.first.weight.is_leaf
        return x.relu() if wanted else 3 * x


ENTRIES = [
    entry("is-compiling", Compiling),
    entry("statistics-over-ranks", AcrossRanks),
    entry("world-size", PerRank),
    entry("manual-seed", Seeded),
    entry("iterator", Cycled),
    entry("lru-cache", Memoised),
    entry("tensor-without-dims", Temperature, lambda: vectors() | {"temperature": torch.rand(()) + 0.5}),
    entry("config-counter", Configured),
    entry("type-is-tensor", ByClass),
    entry("system-random", FromSystem),
    entry("local-import", LocalImport),
    entry("own-generator", OwnGenerator),
    entry("clock", Clock),
    entry("default-argument", DefaultArgument),
    entry("context-variable", ContextCounter),
    entry("schedule-object", Scheduled),
    entry("swallowed-refusal", Swallowing),
    entry("grad-mode", GradMode),
]
