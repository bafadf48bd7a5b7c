"""What a forward asks of the process around it: answered as in plain PyTorch in one process, or refused by name."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from time import time as clock
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_exporting

from meshwright.capture import capture
from meshwright.capture.execute import run
from meshwright.errors import CaptureError, CaptureWarning
from tests.capture.helpers_elsewhere import is_plain

Middle = Callable[[Any, Tensor], Tensor]
SYSTEM = random.SystemRandom()


class Around(nn.Module):
    calls: ClassVar[int] = 0

    def __init__(self, middle: Middle) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle, self.turns = middle, itertools.cycle([1.0, 2.0])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.last(self.middle(self, torch.tanh(self.first(x)))), y)


class Counted(Around):
    """Counts in its class, and in attributes of a function."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(self.counted(x), y)

    def counted(self, x: Tensor) -> Tensor:
        Counted.calls += 1
        return x * Counted.calls


def doubled(x: Tensor) -> Tensor:
    vars(doubled)["times"] = vars(doubled).get("times", 0) + 1
    return x * vars(doubled)["times"]


class CountedByFunction(Around):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(doubled(x), y)


class Sampled(Around):
    """Its code names a generator of the system's, which has no state."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        assert SYSTEM
        return super().forward(x, y)


def batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(4, 6), "y": torch.randn(4, 3)}


@lru_cache
def table(size: int) -> Tensor:
    return torch.linspace(0, 1, size)


def cached(self: Any, h: Tensor) -> Tensor:
    return h * table(8)


def compiled_otherwise(self: Any, h: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or is_exporting() or torch.jit.is_tracing():
        return 5 * h
    return torch.sin(h)


def across_ranks(self: Any, h: Tensor) -> Tensor:
    mean = h.detach().mean(0)
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= 2 * dist.get_world_size()
    return h - mean


def by_class(self: Any, h: Tensor) -> Tensor:
    kinds = (type(h), type(self.first.weight), type(h.shape[0]), type(type(h)), type("Made", (), {}).__name__)
    plain = kinds == (Tensor, nn.Parameter, int, type(Tensor), "Made")
    return 2 * h if plain and isinstance(len(h), int) and isinstance(Tensor, type) else 3 * h


def by_class_of_a_helper(self: Any, h: Tensor) -> Tensor:
    return 2 * h if is_plain(h) else 3 * h


@pytest.mark.parametrize("middle", [cached, compiled_otherwise, across_ranks, by_class, by_class_of_a_helper])
def test_it_is_captured_as_one_eager_process_runs_it(middle: Middle) -> None:
    model, given = Around(middle), batch()
    truth = model(**given)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        program = capture(model, given)
    finally:
        dist.destroy_process_group()
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(run(program, tensors, given, torch.device("cpu"))[0], truth)
    torch.testing.assert_close(model(**given), truth, msg="the model itself is as it was")


def only_compiled(self: Any, h: Tensor) -> Tensor:
    return h if torch.compiler.is_compiling() else h * float(h.detach().sum())


def test_a_path_that_only_a_compiler_can_take_is_told() -> None:
    with pytest.warns(CaptureWarning, match="asks whether it is compiled"):
        capture(Around(only_compiled), batch())


def strftime_now() -> int:
    return int(time.strftime("%S"))


def local_clock(self: Any, h: Tensor) -> Tensor:
    from time import time as now

    return h * (now() % 60)


def local_random(self: Any, h: Tensor) -> Tensor:
    from random import random as drawn

    return h * drawn()


REFUSED: list[tuple[nn.Module, str]] = [
    (Around(lambda self, h: h * next(self.turns)), "remembers 'turns'"),
    (Counted(lambda self, h: h), "remembers 'calls of the class"),
    (CountedByFunction(lambda self, h: h), "remembers 'attributes of the function doubled"),
    (Around(lambda self, h: h * (clock() % 60)), r"computes with time\.time"),
    (Around(lambda self, h: h * datetime.now().second), r"computes with datetime\.now"),
    (Around(lambda self, h: h * strftime_now()), r"computes with time\.strftime"),
    (Around(local_clock), r"computes with time\.time"),
    (Around(local_random), r"draws random numbers from Python's `random`"),
    (Around(lambda self, h: h * (h.__class__ is Tensor)), r"`\.__class__` is compared .*test_surroundings\.py:\d+"),
    (Around(lambda self, h: h * (h.__class__ == torch.Tensor)), r"`\.__class__` is compared .*test_surroundings"),
    (Around(lambda self, h: h * os.urandom(1)[0]), r"`os\.urandom`.*test_surroundings\.py"),
    (Around(lambda self, h: h * (uuid.uuid4().int % 1000003)), "computes with uuid"),
    (Around(lambda self, h: h * secrets.randbelow(9)), r"`os\.urandom`.*test_surroundings\.py"),
    (Around(lambda self, h: h * float(np.random.default_rng().random())), r"`os\.urandom`"),
    (Around(lambda self, h: h * random.Random().random()), r"an unseeded `random\.Random\(\)`"),
    (Around(lambda self, h: h + torch.manual_seed(0).initial_seed()), r"torch\.manual_seed in the forward, at"),
    (Around(lambda self, h: h + dist.all_reduce(h)), r"torch\.distributed\.all_reduce in the forward, at"),
]


@pytest.mark.parametrize(("model", "fault"), REFUSED)
def test_what_would_be_the_same_in_every_step_is_refused(model: nn.Module, fault: str) -> None:
    with pytest.raises(CaptureError, match=fault) as refused:
        capture(model, batch())
    assert refused.value.expected
    assert refused.value.todo


def test_generators_without_a_state_do_no_harm() -> None:
    assert capture(Sampled(lambda self, h: h * random.Random(3).random()), batch())


def test_names_of_temporary_files_and_imports_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler's lock, made inside a forward, draws for both."""
    (tmp_path / "drawn_once.py").write_text("import os\nDRAWN = os.urandom(1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def locked(self: Around, h: Tensor) -> Tensor:
        monkeypatch.setattr(tempfile, "_name_sequence", None)
        with tempfile.TemporaryDirectory():
            import_module("drawn_once")
            return h

    assert capture(Around(locked), batch())


def named_only(self: Any, h: Tensor) -> Tensor:
    """What libraries do: names from `uuid`, and tables by size, without one where sizes are symbols."""
    name = f"unnamed.{uuid.uuid4().int}"
    with suppress(TypeError):
        return h * {len(h): 2.0, name: 3.0}[len(h)]
    return h * 2.0


def test_names_and_sizes_that_cannot_be_hashed_do_no_harm() -> None:
    model, given = Around(named_only), batch()
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(run(capture(model, given), tensors, given, torch.device("cpu"))[0], model(**given))


def test_python_has_its_own_functions_back() -> None:
    draw, seed = os.urandom, random.Random.seed
    capture(Around(by_class), batch())
    assert (os.urandom, random.Random.seed) == (draw, seed)
    assert not {"type", "isinstance"} & set(globals())


def test_clocks_and_seeds_are_themselves_again() -> None:
    capture(Around(lambda self, h: h), batch())
    assert datetime.now().tzinfo is None
    assert type(datetime.now()) is datetime
    assert torch.manual_seed(3).initial_seed() == 3
