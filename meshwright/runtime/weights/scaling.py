"""Loss scaling of `precision="fp16"`, as `torch.amp.GradScaler` does it: float16 gradients are too small without.

The loss is multiplied by a scale before backward. Stored gradients are float32 and divided by it after. Where one of
them, on any rank, is not finite, the step is skipped: all gradients are None, which every optimizer passes over, and
the scale is halved. After enough steps in a row without, it is doubled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.errors import RunError
from meshwright.torch_compat import local_tensor

LOGGER = logging.getLogger("meshwright.run")


class LossScale:
    """scale: what the loss is multiplied by. good: steps in a row whose gradients were finite. skipped: steps in all
    that were not. The figures are GradScaler's defaults; they may be set between steps, alike on every rank."""

    def __init__(self) -> None:
        self.scale, self.growth, self.backoff, self.interval = 65536.0, 2.0, 0.5, 2000
        self.good = self.skipped = 0

    def state_dict(self) -> dict[str, float | int]:
        return {"scale": self.scale, "good": self.good, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        self.scale, self.good, self.skipped = float(state["scale"]), int(state["good"]), int(state["skipped"])

    def check_empty(self, parameters: Iterable[nn.Parameter]) -> None:
        """Before a step: what is there already was divided by a scale, what comes was not yet."""
        if any(parameter.grad is not None for parameter in parameters):
            raise RunError(
                "gradients of an earlier step are still there, under precision='fp16'",
                "none: each step's are checked and divided by the loss scale of that step",
                "call optimizer.zero_grad() before trainer.step; micro-batches add gradients up within one",
            )

    @torch.no_grad()
    def finish(self, parameters: Iterable[nn.Parameter], device: torch.device) -> bool:
        """After backward: divides the gradients, or drops them all. Every rank calls it; whether they were finite."""
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        pieces = [_piece(parameter.grad) for parameter in trained if parameter.grad is not None]
        for piece in pieces:
            piece.mul_(1.0 / self.scale)
        fine = all(bool(found.item()) for found in _finite(pieces))
        bad = torch.tensor(float(not fine), device=device)
        if dist.get_world_size() > 1:
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        if bad.item():
            for parameter in trained:
                parameter.grad = None
            LOGGER.info("gradients are not finite with a loss scale of %g: the step is skipped", self.scale)
            self.scale, self.good, self.skipped = self.scale * self.backoff, 0, self.skipped + 1
            return False
        self.good += 1
        if self.good >= self.interval:
            self.scale, self.good = self.scale * self.growth, 0
        return True


def _piece(gradient: Tensor) -> Tensor:
    return local_tensor(gradient) if isinstance(gradient, DTensor) else gradient


def _finite(pieces: Iterable[Tensor]) -> list[Tensor]:
    """Of each device, whether all pieces on it are: read once."""
    found: dict[torch.device, list[Tensor]] = {}
    for piece in pieces:
        found.setdefault(piece.device, []).append(torch.isfinite(piece).all())
    return [torch.stack(each).all() for each in found.values()]
