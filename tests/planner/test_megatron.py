"""Column then row: the optimum for a small-batch MLP whose matmuls must be split, and what then runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
import torch.nn.functional as F
from processes import GlooPool
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.layout import Collective
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

PAIRS, BATCH, HIDDEN, NARROW = 3, 4, 256, 64


class MLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(PAIRS))
        self.down = nn.ModuleList(nn.Linear(4 * hidden, hidden, bias=False) for _ in range(PAIRS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = down(F.relu(up(x)))
        return F.mse_loss(x, y)


def setting(hidden: int = HIDDEN) -> tuple[MLP, dict[str, Tensor]]:
    torch.manual_seed(0)
    return MLP(hidden), {"x": torch.randn(BATCH, hidden), "y": torch.randn(BATCH, hidden)}


def run_step(rank: int, plan_json: bytes) -> list[Collective]:
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch = setting()
    trainer = parallelize(model, Plan.from_json(plan_json))
    with record() as log:
        trainer.step(batch, global_batch=True)
    return list(log)


def test_column_then_row_with_one_all_reduce_each_way(ranks: Callable[[int], GlooPool]) -> None:
    plan = make_plan(capture(*setting()), load_cluster("local:2"), pins=("split=matmul", "zero=0"))
    assert {name: entry.compute for name, entry in plan.parameters.items()} == {
        **{f"up.{i}.weight": "[S(0)]" for i in range(PAIRS)},
        **{f"down.{i}.weight": "[S(1)]" for i in range(PAIRS)},
    }
    # Forward after every pair; backward before every pair but the first, whose input has no gradient.
    activation = Collective("all_reduce", "tp", 4 * BATCH * HIDDEN)
    expected = Counter({activation: PAIRS + (PAIRS - 1)})
    assert Counter(plan.predicted.collectives) == expected
    for log in ranks(2).run(run_step, plan.to_json()):
        assert Counter(log) == expected


def test_nothing_is_split_where_splitting_costs_more() -> None:
    plan = make_plan(capture(*setting(NARROW)), load_cluster("local:2"))
    assert plan.predicted.collectives == ()
