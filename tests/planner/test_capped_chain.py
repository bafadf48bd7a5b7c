"""Chains under a cap on what ops need while they run."""

from __future__ import annotations

import torch
from torch import nn

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.pins.meshes import allowed_meshes
from meshwright.planner.chain.lagrangian import chain_at
from meshwright.planner.search.mesh_search import MeshSearch
from meshwright.planner.space.candidates import candidates_on
from meshwright.price.parameter import Setting


class Residual(nn.Module):
    """Two layers whose values are added: shardings of both sides have to agree."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def test_a_cap_under_which_no_layer_runs_keeps_the_chain_and_blames_no_pins() -> None:
    """It was refused as pins that disagree, where there are none."""
    program = capture(Residual(), torch.randn(64, 64))
    meshes = [mesh for mesh in allowed_meshes(load_cluster("h100:8"), (), 2) if len(mesh.axes) == 2]
    shardings = candidates_on(program, meshes, (), Setting("adamw", "fp32"), few=True)[0].shardings(1)
    chain = chain_at(shardings, 0.0)
    budget = chain.static_bytes + chain.transient_bytes // 100
    together = MeshSearch(shardings, program, budget, lambda *_: None, incumbent_s=1.0)  # type: ignore[arg-type, return-value]
    assert together._lean(shardings, chain) is chain
