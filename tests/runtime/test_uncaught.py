"""Under torchrun an error that nobody catches is one message, not a traceback of each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import GlooPool
from safetensors.torch import save
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from meshwright.errors import RunError
from meshwright.runtime.fail import TORCHS_OWN, LostError, tell_uncaught

SCRIPT = """
import torch, meshwright as mw; torch.manual_seed(0)
model, batch = torch.nn.Linear(4, 4), {"input": torch.randn(4, 4)}
loss = lambda output, target: output.square().mean()
plan = mw.plan(model, batch, cluster="local:2", loss=loss, pins=("dp=2",))
trainer = mw.parallelize(model, plan, loss)
model.eval()
trainer.step(batch, global_batch=True)
"""


def test_errors_of_ours_are_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    others: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: others.append(error))
    tell_uncaught()
    before = sys.excepthook
    monkeypatch.setenv("RANK", "0")
    tell_uncaught()
    assert sys.excepthook is not before, "on a rank that somebody started, and not without one"
    installed = sys.excepthook
    tell_uncaught()
    assert sys.excepthook is installed, "once"
    given = [RunError("given", "expected", "do"), LostError("rank 1 is gone"), ValueError("a user's own")]
    for error in (*given, _of_no_parameters()):
        try:
            raise error
        except Exception as caught:
            sys.excepthook(type(caught), caught, caught.__traceback__)
    told = capsys.readouterr().err
    assert "meshwright: given\n  expected: expected\n  to do: do\n  at: " in told
    assert "raise error" in told
    assert "meshwright: rank 0: rank 1 is gone" in told
    assert "Traceback" not in told
    assert others[0] is given[2]
    assert not hasattr(others[0], "__notes__")
    assert "has the parameters of its own stage alone" in others[1].__notes__[0]


def _of_no_parameters() -> ValueError:
    """What torch says on a rank of a pipeline that has none of the layers of which an optimizer is made."""
    with pytest.raises(ValueError, match="optimizer") as told:
        torch.optim.SGD(iter(()))
    return told.value


def test_messages_of_torch_that_have_notes(ranks: Callable[[int], GlooPool]) -> None:
    """They are torch's still: each is met here."""
    piece = nn.Parameter(torch.ones(2))
    state = torch.optim.SGD([piece]).state_dict()
    with pytest.raises(ValueError, match="optimizer") as sizes:
        torch.optim.SGD([piece, nn.Parameter(torch.ones(2))]).load_state_dict(state)
    met = [str(_of_no_parameters()), str(sizes.value), *ranks(2).run(_of_dtensors)[0]]
    assert all(any(words in text for text in met) for words in TORCHS_OWN)


def _of_dtensors(rank: int) -> list[str]:
    one = distribute_tensor(torch.ones(2, 2), init_device_mesh("cpu", (2,)))
    with pytest.raises(RuntimeError) as mixed:
        one + torch.ones(2, 2)
    with pytest.raises(RuntimeError) as saved:
        save({"one": one})
    return [str(mixed.value), str(saved.value)]


@pytest.mark.full
def test_two_ranks_of_torchrun_say_it_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert run.returncode != 0
    assert run.stderr.count("the model is in eval mode, but was planned in train mode") == 1
    assert "train.py:8  trainer.step(batch, global_batch=True)" in run.stderr
    assert "trainer.py" not in run.stderr, "no traceback through meshwright"
