"""The selection problem, in flat arrays.

Choose one option x_i for every node i so as to minimise

    sum_i c_i(x_i)  +  sum_(i,j) E_ij(x_i, x_j)                                     (cost)

subject to, for every row r (a *moment*, a device, any budget),

    sum over the uses u of chosen options with  begin_u <= r < end_u  of  bytes_u  <=  limit_r.     (rows)

A cost of +inf forbids an option or a pair. A use spans a run of rows, so that a value alive for ten thousand moments is
one entry and not ten thousand; an option may have any number of uses, so it can occupy different moments with
different bytes, and several uses of one option in one row add up. `total_cost` is (cost), `row_usage` the left side
of (rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.errors import ProblemError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Integers up to 2**53 add exactly in float64; this only forgives the last bits of sums of non-integers.
ROW_TOLERANCE = 1e-12


def running(sizes: Sequence[int] | Ints) -> Ints:
    """Where each of so many begins, and where the last ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int64)


def join(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)


class InfeasibleError(ProblemError):
    """It was proven that no choice meets the constraints."""


def no_choice(by: str, problem: Problem | None = None) -> InfeasibleError:
    """Names the node or the edge of `problem` that rules out everything on its own, if there is one."""
    alone = None if problem is None else _ruled_out(problem)
    return alone or InfeasibleError(
        f"no choice meets all limits and forbidden pairs (proven by {by})",
        "limits and pairs that leave at least one choice",
        "raise the limits or allow more pairs",
    )


def _ruled_out(problem: Problem) -> InfeasibleError | None:
    for node in range(problem.nodes):
        if np.isinf(problem.costs[problem.offsets[node] : problem.offsets[node + 1]]).all():
            given = f"all {problem.options(node)} options of {problem.label(node)} are forbidden"
            return InfeasibleError(given, "an option of finite cost")
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        if np.isinf(problem.matrix(edge)).all():
            given = f"edge {edge} forbids every pair of {problem.label(a)} and {problem.label(b)}"
            return InfeasibleError(given, "a pair of finite cost")
    return None


@dataclass(frozen=True, eq=False)
class Problem:
    """Flat arrays; built by `ProblemBuilder`, `contest.load` or by hand. Call `verify()` after the latter."""

    offsets: Ints  # option o of node i is entry offsets[i] + o of `costs`
    costs: Floats
    edge_nodes: Ints  # shape (edges, 2)
    edge_offsets: Ints
    edge_costs: Floats  # row-major matrices, rows the options of edge_nodes[e, 0]
    limits: Floats  # one per row; +inf where the row does not bind
    use_option: Ints  # entry of `costs` the use belongs to
    use_begin: Ints  # first row
    use_end: Ints  # one past the last row
    use_bytes: Floats
    names: tuple[str, ...] = ()
    name: str = "problem"

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.edge_nodes)

    @cached_property
    def use_node(self) -> Ints:
        """The node every use belongs to."""
        return (np.searchsorted(self.offsets, self.use_option, side="right") - 1).astype(np.int64)

    def options(self, node: int) -> int:
        return int(self.offsets[node + 1] - self.offsets[node])

    def label(self, node: int) -> str:
        return f"node {node} ({self.names[node]})" if self.names else f"node {node}"

    def matrix(self, edge: int) -> Floats:
        flat = self.edge_costs[self.edge_offsets[edge] : self.edge_offsets[edge + 1]]
        return flat.reshape(self.options(self.edge_nodes[edge, 0]), -1)

    def total_cost(self, choice: Sequence[int] | Ints) -> float:
        """(cost); +inf when an option or a pair of options is forbidden."""
        picked = self.offsets[:-1] + np.asarray(choice, dtype=np.int64)
        total = float(self.costs[picked].sum())
        if self.edges:
            a, b = self.edge_nodes.T
            width = np.diff(self.offsets)
            local = np.asarray(choice, dtype=np.int64)
            total += float(self.edge_costs[self.edge_offsets[:-1] + local[a] * width[b] + local[b]].sum())
        return total

    def row_usage(self, choice: Sequence[int] | Ints, nodes: npt.NDArray[np.bool_] | None = None) -> Floats:
        """Bytes in use in every row, by all nodes or by those that `nodes` marks."""
        local = np.asarray(choice, dtype=np.int64)
        on = self.offsets[self.use_node] + local[self.use_node] == self.use_option
        if nodes is not None:
            on &= nodes[self.use_node]
        delta = np.zeros(len(self.limits) + 1)
        np.add.at(delta, self.use_begin[on], self.use_bytes[on])
        np.subtract.at(delta, self.use_end[on], self.use_bytes[on])
        return np.cumsum(delta)[:-1]

    def worst_row(self, choice: Sequence[int] | Ints) -> tuple[int, float]:
        """The row furthest over its limit and by how many bytes; (-1, 0.0) when every row fits."""
        if not len(self.limits):
            return -1, 0.0
        over = self.row_usage(choice) - self.limits
        over[over <= ROW_TOLERANCE * np.abs(self.limits)] = 0.0
        row = int(np.argmax(over))
        return (row, float(over[row])) if over[row] > 0 else (-1, 0.0)

    def feasible(self, choice: Sequence[int] | Ints) -> bool:
        return self.worst_row(choice)[0] < 0 and np.isfinite(self.total_cost(choice))

    def verify(self) -> Problem:
        """Raises `ProblemError` naming the first index that is wrong and its numbers; returns self."""
        _verify(self)
        return self


def _verify(problem: Problem) -> None:
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
