"""Clusters and meshes: what the machine is, and what a collective costs on it. Imports no torch."""

from meshwright.cluster.cost import KINDS, collective_s
from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.enumerate import meshes, shapes
from meshwright.cluster.load import load_cluster
from meshwright.cluster.logical import logical_mesh
from meshwright.cluster.mesh import FLAT, Axis, Hop, Mesh
from meshwright.cluster.submesh import place, submeshes
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group, Link, Member

__all__ = [
    "FLAT",
    "KINDS",
    "Achievable",
    "Axis",
    "Cluster",
    "Device",
    "Group",
    "Hop",
    "Link",
    "Member",
    "Mesh",
    "collective_s",
    "load_cluster",
    "logical_mesh",
    "meshes",
    "place",
    "shapes",
    "submeshes",
]
