"""A sharded tensor, whole, on every rank."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """Every rank of its mesh must call this. What is not sharded is returned as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    gloo = dist.get_backend(tensor.device_mesh.get_group(0)) == "gloo"
    return through_host(tensor) if tensor.is_cuda and gloo else tensor.full_tensor()


def through_host(tensor: DTensor) -> Tensor:
    """Over the host's memory: DTensor's own gathers of a GPU's tensors end a process where gloo would carry them."""
    mesh = tensor.device_mesh
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    names = mesh.mesh_dim_names
    host = DeviceMesh.from_group(groups if mesh.ndim > 1 else groups[0], "cpu", mesh.mesh, mesh_dim_names=names)
    local = tensor.to_local().cpu()
    there = DTensor.from_local(
        local, host, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return there.full_tensor().to(tensor.device)
