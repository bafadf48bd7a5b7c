"""Builds a `Problem` node by node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshwright.errors import ProblemError
from meshwright.select.problem import Problem, join, running


class ProblemBuilder:
    """Collects nodes, edges, rows and uses; every method returns the index it created.

    >>> build = ProblemBuilder()
    >>> a, b = build.node([3.0, 1.0], name="a"), build.node([0.0, 2.0])
    >>> _ = build.edge(a, b, [[0.0, 5.0], [float("inf"), 0.0]])   # inf: this pair is forbidden
    >>> row = build.row(limit=10.0)
    >>> build.use(row, a, 0, 8.0)
    >>> build.build().total_cost([0, 0])
    3.0
    """

    def __init__(self, name: str = "problem") -> None:
        self._name = name
        self._costs: list[npt.NDArray[np.float64]] = []
        self._names: list[str] = []
        self._edges: list[tuple[int, int]] = []
        self._matrices: list[npt.NDArray[np.float64]] = []
        self._limits: list[float] = []
        self._uses: list[tuple[int, int, int, int, float]] = []

    def node(self, costs: Sequence[float] | npt.NDArray[np.float64], *, name: str = "") -> int:
        """A node and the cost of each of its options; +inf forbids one."""
        self._costs.append(np.asarray(costs, dtype=np.float64).reshape(-1))
        self._names.append(name)
        return len(self._costs) - 1

    def edge(self, a: int, b: int, matrix: Sequence[Sequence[float]] | npt.NDArray[np.float64]) -> int:
        """What each pair of options of a (rows) and b (columns) costs; +inf forbids a pair."""
        found = np.asarray(matrix, dtype=np.float64)
        want = (len(self._costs[a]), len(self._costs[b]))
        if found.shape != want:
            raise ProblemError(f"edge {len(self._edges)} between nodes {a} and {b} has a matrix of shape {found.shape}",
                               f"{want}, the option counts of the two nodes")  # fmt: skip
        self._edges.append((a, b))
        self._matrices.append(found)
        return len(self._edges) - 1

    def row(self, limit: float) -> int:
        """A budget: the bytes of chosen options used in it must not exceed `limit`."""
        self._limits.append(float(limit))
        return len(self._limits) - 1

    def use(self, row: int, node: int, option: int, bytes: float) -> None:
        """Option `option` of `node`, when chosen, takes `bytes` in `row`; calls for the same place add up."""
        self.hold(row, row + 1, node, option, bytes)

    def hold(self, begin: int, end: int, node: int, option: int, bytes: float) -> None:
        """The same in every row from `begin` up to but not including `end`."""
        if not 0 <= option < len(self._costs[node]):
            raise ProblemError(f"a use names option {option} of node {node}", f"0 to {len(self._costs[node]) - 1}")
        if bytes != 0:
            self._uses.append((node, option, begin, end, float(bytes)))

    def build(self) -> Problem:
        """The verified problem."""
        offsets = running([len(c) for c in self._costs])
        uses = self._uses
        columns = np.array([u[:4] for u in uses], dtype=np.int64).reshape(-1, 4)
        return Problem(
            offsets=offsets,
            costs=join(self._costs),
            edge_nodes=np.array(self._edges, dtype=np.int64).reshape(-1, 2),
            edge_offsets=running([m.size for m in self._matrices]),
            edge_costs=join([m.reshape(-1) for m in self._matrices]),
            limits=np.array(self._limits, dtype=np.float64),
            use_option=offsets[columns[:, 0]] + columns[:, 1],
            use_begin=columns[:, 2].copy(),
            use_end=columns[:, 3].copy(),
            use_bytes=np.array([u[4] for u in uses], dtype=np.float64),
            names=tuple(self._names) if any(self._names) else (),
            name=self._name,
        ).verify()
