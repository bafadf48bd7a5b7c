"""What a `Problem` must satisfy, and the message for each way to break it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.errors import ProblemError

if TYPE_CHECKING:
    from meshwright.select.problem import Problem


def verify(problem: Problem) -> None:
    for check in (_nodes, _costs, _edges, _uses, _limits):
        check(problem)


def _nodes(p: Problem) -> None:
    if len(p.offsets) < 1 or p.offsets[0] != 0 or p.offsets[-1] != len(p.costs):
        ends = f"{p.offsets[0]}..{p.offsets[-1]}" if len(p.offsets) else "nothing"
        raise ProblemError(f"option offsets run over {ends} but there are {len(p.costs)} option costs",
                           "offsets from 0 to the number of option costs")  # fmt: skip
    for node in np.flatnonzero(np.diff(p.offsets) < 1)[:1]:
        raise ProblemError(f"{p.label(int(node))} has {p.options(int(node))} options", "at least one option",
                           "give the node an option, or leave it out of the problem")  # fmt: skip
    if p.names and len(p.names) != p.nodes:
        raise ProblemError(f"{len(p.names)} names for {p.nodes} nodes", "one name per node, or none")


def _costs(p: Problem) -> None:
    for array, what in ((p.costs, "option cost"), (p.edge_costs, "edge cost")):
        for index in np.flatnonzero(np.isnan(array) | (array == -np.inf))[:1]:
            raise ProblemError(f"{what} {index} is {array[index]}", "a number, or +inf for forbidden")


def _edges(p: Problem) -> None:
    if p.edge_nodes.shape != (len(p.edge_offsets) - 1, 2):
        raise ProblemError(f"edge_nodes has shape {p.edge_nodes.shape}, there are {len(p.edge_offsets) - 1} matrices",
                           "a pair of nodes per matrix")  # fmt: skip
    wrong = (p.edge_nodes < 0) | (p.edge_nodes >= p.nodes)
    for edge in np.flatnonzero(wrong.any(axis=1))[:1]:
        raise ProblemError(f"edge {edge} joins nodes {p.edge_nodes[edge].tolist()}", f"nodes 0 to {p.nodes - 1}")
    for edge in np.flatnonzero(p.edge_nodes[:, 0] == p.edge_nodes[:, 1])[:1]:
        raise ProblemError(f"edge {edge} joins node {p.edge_nodes[edge, 0]} to itself", "two different nodes",
                           "add the diagonal of its matrix to the node's costs")  # fmt: skip
    width = np.diff(p.offsets)
    need = width[p.edge_nodes].prod(axis=1) if p.edges else np.zeros(0, dtype=np.int64)
    for edge in np.flatnonzero(np.diff(p.edge_offsets) != need)[:1]:
        a, b = p.edge_nodes[edge]
        raise ProblemError(f"edge {edge} between nodes {a} and {b} has {np.diff(p.edge_offsets)[edge]} costs",
                           f"{width[a]} x {width[b]} = {need[edge]} costs")  # fmt: skip
    if p.edge_offsets[0] != 0 or p.edge_offsets[-1] != len(p.edge_costs):
        raise ProblemError(f"edge offsets run over {p.edge_offsets[0]}..{p.edge_offsets[-1]} "
                           f"but there are {len(p.edge_costs)} edge costs")  # fmt: skip


def _uses(p: Problem) -> None:
    sizes = {len(a) for a in (p.use_option, p.use_begin, p.use_end, p.use_bytes)}
    if len(sizes) != 1:
        raise ProblemError(f"the arrays of uses have lengths {sorted(sizes)}", "one length for all four")
    for use in np.flatnonzero((p.use_option < 0) | (p.use_option >= len(p.costs)))[:1]:
        raise ProblemError(f"use {use} belongs to option entry {p.use_option[use]}", f"0 to {len(p.costs) - 1}")
    wrong = (p.use_begin < 0) | (p.use_end < p.use_begin) | (p.use_end > len(p.limits))
    for use in np.flatnonzero(wrong)[:1]:
        raise ProblemError(
            f"use {use} of {p.label(int(p.use_node[use]))} spans rows {p.use_begin[use]} to {p.use_end[use]}",
            f"0 <= begin <= end <= {len(p.limits)} rows",
        )
    for use in np.flatnonzero(~np.isfinite(p.use_bytes) | (p.use_bytes < 0))[:1]:
        raise ProblemError(f"use {use} of {p.label(int(p.use_node[use]))} has {p.use_bytes[use]} bytes",
                           "a finite number, zero or more")  # fmt: skip


def _limits(p: Problem) -> None:
    for row in np.flatnonzero(np.isnan(p.limits))[:1]:
        raise ProblemError(f"the limit of row {row} is not a number", "a number of bytes, or +inf")
