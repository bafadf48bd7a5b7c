"""Which part of a tensor a rank holds; and a sharded tensor, whole, on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.layout import Layout

Region = tuple[slice, ...]


def region(layout: Layout, shape: Sequence[int], mesh_sizes: Sequence[int], coordinates: Sequence[int]) -> Region:
    """The part of the rank at these coordinates; pieces are cut as `torch.chunk` does."""
    found = []
    for dim, length in enumerate(shape):
        start, end = 0, length
        for axis in layout.sharding(dim):
            width = -(-(end - start) // mesh_sizes[axis])
            start = min(end, start + coordinates[axis] * width)
            end = min(end, start + width)
        found.append(slice(start, end))
    return tuple(found)


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
