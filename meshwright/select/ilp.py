"""HiGHS on a `Problem`, with lazy rows: the caller sees bounds and feasible choices as they come.

Most rows never bind, so the program (`model`) starts with none of them. The relaxation is solved and rows it breaks
are added until it breaks none; then the integer program, and so on. Every program solved is a relaxation of the
problem, so its bound holds for the problem; a choice counts only when it meets all rows exactly. Where HiGHS takes
a choice for feasible that is over by less than its tolerance, the choice is cut off by name: of the options that
together overfill the row, one must go.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import highspy
import numpy as np

from meshwright.select.model import Model, columns_of, formulate, row_coefficients
from meshwright.select.problem import ROW_TOLERANCE, Floats, Ints, Problem, no_choice

# Called with a bound and a choice, either of them None.
Report = Callable[[float | None, list[int] | None], None]
# Rows added per round: the worst of each stretch of rows that are over.
ROWS_PER_ROUND = 32
TOLERANCE = 1e-9
LP_TOLERANCE = 1e-7


def branch_and_bound(
    problem: Problem,
    report: Report,
    *,
    seconds: float,
    gap: float = 0.0,
    offered: Callable[[], list[int] | None] = lambda: None,
    max_nodes: int | None = None,
) -> bool:
    """True when the best of the choices reported and offered is proven optimal to `gap`. `offered` is asked for a
    feasible choice before each start. Raises `InfeasibleError` when there is none.
    """
    deadline = time.perf_counter() + seconds
    program = _Program(problem, report)
    while program.relax(deadline - time.perf_counter()):
        if not program.tighten(program.values(), integral=False):
            break
    while time.perf_counter() < deadline:
        solved = program.branch(offered(), deadline - time.perf_counter(), gap, max_nodes)
        choice = program.choice()
        if choice is None or not program.tighten(program.point(choice), integral=True):
            return solved
        if max_nodes is not None and not solved:
            return False
    return False


class _Program:
    """A HiGHS model that grows rows."""

    def __init__(self, problem: Problem, report: Report) -> None:
        self.problem = problem
        self.report = report
        self.rows: set[int] = set()
        self.model = formulate(problem, np.zeros(0, dtype=np.int64))
        self.scale = _scale(problem)
        self.highs = _load(self.model, self.scale)
        self.highs.cbMipImprovingSolution += self._improved

    def relax(self, seconds: float) -> bool:
        """Solves the linear relaxation; False when it was not finished in time."""
        h = self.highs
        h.setOptionValue("time_limit", h.getRunTime() + max(0.0, seconds))
        h.setOptionValue("solve_relaxation", True)
        h.run()
        _refuse_infeasible(h)
        if h.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return False
        value = h.getInfo().objective_function_value / self.scale
        self.report(value - 1e-9 * abs(value), None)
        return True

    def branch(self, start: list[int] | None, seconds: float, gap: float, max_nodes: int | None) -> bool:
        """Solves the integer program; True when it was solved to `gap`."""
        h = self.highs
        h.setOptionValue("solve_relaxation", False)
        h.setOptionValue("time_limit", h.getRunTime() + seconds)
        h.setOptionValue("mip_rel_gap", gap)
        h.setOptionValue("mip_abs_gap", 0.0)
        if max_nodes is not None:
            h.setOptionValue("mip_max_nodes", max_nodes)
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = columns_of(self.model, self.problem, np.array(start)).tolist()
            h.setSolution(solution)
        h.run()
        _refuse_infeasible(h)
        self.report(h.getInfo().mip_dual_bound / self.scale, None)
        choice = self.choice()
        if choice is not None:
            self._offer(choice)
        return bool(h.getModelStatus() == highspy.HighsModelStatus.kOptimal)

    def _improved(self, event: highspy.HighsCallbackEvent) -> None:
        self._offer(self._read(np.array(event.data_out.mip_solution)))

    def _offer(self, choice: Ints) -> None:
        if self.problem.feasible(choice):
            self.report(None, choice.tolist())

    def _read(self, value: Floats) -> Ints:
        bounds = zip(self.problem.offsets[:-1], self.problem.offsets[1:], strict=True)
        return np.array([int(value[a:b].argmax()) for a, b in bounds])

    def point(self, choice: Ints) -> Floats:
        point = np.zeros(len(self.problem.costs))
        point[self.problem.offsets[:-1] + choice] = 1.0
        return point

    def values(self) -> Floats:
        return np.array(self.highs.getSolution().col_value)[: self.model.options]

    def choice(self) -> Ints | None:
        if self.highs.getInfo().primal_solution_status != 2:  # no feasible point known
            return None
        return self._read(self.values())

    def tighten(self, value: Floats, *, integral: bool) -> bool:
        """Adds rows that the point `value` breaks; True when there were any."""
        p = self.problem
        share = value[p.use_option] * p.use_bytes
        change = np.zeros(len(p.limits) + 1)
        np.add.at(change, p.use_begin, share)
        np.subtract.at(change, p.use_end, share)
        over = np.cumsum(change)[:-1] - p.limits
        over[over <= (ROW_TOLERANCE if integral else LP_TOLERANCE) * np.abs(p.limits)] = 0.0
        if not integral:
            over[list(self.rows)] = 0.0  # as good as the tolerances of a relaxation allow
        broken = np.flatnonzero(over)
        for row in _apart(broken[np.argsort(-over[broken], kind="stable")].tolist(), len(p.limits)):
            self._add(row, value)
        return len(broken) > 0

    def _add(self, row: int, value: Floats) -> None:
        index, size = row_coefficients(self.problem, row)
        limit = float(self.problem.limits[row])
        if row in self.rows:  # HiGHS took this integral point for feasible: of the options in it, one must go
            index = index[(value[index] > 0.5) & (size > 0)]
            size, limit = np.ones(len(index)), len(index) - 1.0
        self.rows.add(row)
        scale = 1.0 / max(abs(limit), float(size.max(initial=0.0)), 1e-300)
        self.highs.addRow(-np.inf, limit * scale, len(index), index.astype(np.int32), size * scale)


def _apart(worst: list[int], rows: int) -> list[int]:
    """The first few of `worst`, no two of them close to each other: neighbouring rows hold nearly the same uses."""
    distance = max(1, rows // (4 * ROWS_PER_ROUND))
    kept: list[int] = []
    for row in worst:
        if all(abs(row - other) >= distance for other in kept):
            kept.append(row)
        if len(kept) == ROWS_PER_ROUND:
            break
    return kept


def _scale(problem: Problem) -> float:
    """Brings costs to where HiGHS's absolute tolerances are small."""
    costs = np.concatenate((problem.costs, problem.edge_costs))
    typical = float(np.abs(costs[np.isfinite(costs)]).max(initial=0.0))
    return 1e5 / typical if typical > 0 else 1.0


def _load(model: Model, scale: float) -> highspy.Highs:
    lp = highspy.HighsLp()
    n, m = len(model.cost), len(model.lower)
    lp.num_col_, lp.num_row_ = n, m
    lp.col_cost_ = np.where(np.isfinite(model.cost), model.cost * scale, 0.0)
    lp.col_lower_, lp.col_upper_ = np.zeros(n), np.where(np.isfinite(model.cost), 1.0, 0.0)
    lp.row_lower_, lp.row_upper_ = model.lower, model.upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.start.astype(np.int32)
    lp.a_matrix_.index_ = model.index.astype(np.int32)
    lp.a_matrix_.value_ = model.value
    kinds = highspy.HighsVarType
    lp.integrality_ = [kinds.kInteger] * model.options + [kinds.kContinuous] * (n - model.options)
    h: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
    h.setOptionValue("output_flag", False)
    h.setOptionValue("threads", 1)
    for name in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
        h.setOptionValue(name, TOLERANCE)
    h.passModel(lp)
    return h


def _refuse_infeasible(h: highspy.Highs) -> None:
    if h.getModelStatus() in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        raise no_choice("HiGHS")
