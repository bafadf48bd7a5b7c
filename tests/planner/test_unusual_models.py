"""Models that leave the planner less than it is used to: a batch that cannot be cut, layers without a gradient."""

from __future__ import annotations

import torch
from captures import capture
from torch import Tensor, fx, nn

from meshwright.cluster import load_cluster
from meshwright.cluster.device_table import GPUS
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.peak import peak_bytes
from meshwright.planner.plan import make_plan


class Fixed(nn.Module):
    """Makes a number of the batch size, so that export fixes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).view(int(x.shape[0]), 2, 4).tanh().mean()


def test_a_batch_that_export_fixed_is_not_cut() -> None:
    program = capture(Fixed(), {"x": torch.zeros(8, 8)})
    assert not program.batch_varies
    plan = make_plan(program, load_cluster("local:2"))
    assert plan.microbatches == 1


def test_a_backward_of_no_calls_has_a_peak() -> None:
    """That of a segment whose parameters are frozen and whose input needs no gradient."""
    graph = fx.Graph()
    graph.placeholder("gradient").meta["val"] = torch.zeros(4)
    graph.output(())
    found = peak_bytes(fx.GraphModule({}, graph), (), (), NodeCosts(GPUS["H200-SXM-141GB"].device))
    assert found == (16, 0)
