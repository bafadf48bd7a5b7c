"""`torch.distributed.pipelining` with the stages and micro-batches of a plan: a rival of bench/shaped_pipelines.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[], float]


def stepping(parameters: list[Any], run: Callable[[], float]) -> tuple[Step, Any]:
    """A step with the same fused AdamW as all others, and the optimizer."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step() -> float:
        loss = run()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, optimizer


def torch_pipeline(reference: Any, plan: Any, whole: dict[str, Any], kind: str) -> Step | None:
    """The plan's stages and micro-batches; ranks of a stage share its samples and reduce their gradients in one
    message. None where torch cannot: stages of different sizes, or several parts of the chain on one stage."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    from torch.nn.functional import cross_entropy

    ranks = [stage.mesh.ranks for stage in plan.stages]
    if len({len(own) for own in ranks}) > 1 or len(plan.groups) < len(plan.stages):
        return None
    pipes = [dist.new_group([own[place] for own in ranks]) for place in range(len(ranks[0]))]
    sides = [dist.new_group(list(own)) for own in ranks]
    number = plan.stage_at(dist.get_rank())
    place = ranks[number].index(dist.get_rank())
    torch.manual_seed(0)
    piece = _Piece(reference.build(), plan.stages[number].segments, len(plan.segments))
    module = piece.module()
    stage = PipelineStage(module, number, len(ranks), torch.device("cpu"), group=pipes[place])
    made = ScheduleGPipe if kind == "GPipe" else Schedule1F1B
    own = {name: tensor.chunk(len(ranks[0]))[place] for name, tensor in whole.items()}
    count = min(plan.microbatches, *map(len, own.values()))  # ranks that split the samples may have fewer of them
    schedule = made(stage, count, lambda y, t: cross_entropy(y.flatten(0, 1), t.flatten()))
    parameters = list(module.parameters())

    def run() -> float:
        losses: list[Any] = []
        if number == 0:
            schedule.step(own["tokens"])
        elif number == len(ranks) - 1:
            schedule.step(target=own["targets"], losses=losses)
        else:
            schedule.step()
        if len(ranks[0]) > 1:
            flat = torch.cat([p.grad.flatten() for p in parameters])
            dist.all_reduce(flat, group=sides[number])
            for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad.copy_(part.view_as(p)).div_(len(ranks[0]))
        loss = torch.stack(losses).mean() if losses else torch.tensor(float("nan"))
        if losses and len(ranks[0]) > 1:
            dist.all_reduce(loss, group=sides[number])
            loss = loss / len(ranks[0])
        return float(loss)

    return stepping(parameters, run)[0]


class _Piece:
    """Some segments of a gpt or a llama as a module: embedding, layers, head."""

    def __init__(self, model: Any, segments: range, count: int) -> None:
        self.model, self.first, self.last = model, segments[0] == 0, segments[-1] == count - 1
        self.layers = [model.layers[i - 1] for i in segments if 0 < i < count - 1]

    def module(self) -> Any:
        import torch
        from torch import nn

        from meshwright.models.llama import rotary_tables

        piece, model = self, self.model

        class Stage(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(piece.layers)
                if piece.first:
                    self.tokens = model.tokens
                    self.positions = getattr(model, "positions", None)
                if piece.last:
                    self.norm, self.head = model.norm, model.head

            def forward(self, x: Any) -> Any:
                if piece.first:
                    positions = torch.arange(x.shape[1])
                    x = self.tokens(x)
                    x = x if self.positions is None else x + self.positions(positions)
                tables = rotary_tables(x.shape[1], model.head_dim, model.rope_base, x) if piece.rotary else ()
                for layer in self.layers:
                    x = layer(x, *tables)
                return self.head(self.norm(x)) if piece.last else x

        return Stage()

    @property
    def rotary(self) -> bool:
        return hasattr(self.model, "rope_base")
