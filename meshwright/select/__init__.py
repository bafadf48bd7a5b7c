"""The selection engine: one option per node, minimum cost, every row within its limit, with a proven gap. No torch.

    build = ProblemBuilder()
    a = build.node([1.0, 4.0], name="matmul")             # cost of each option; +inf forbids one
    b = build.node([0.0, 2.0], name="norm")
    build.edge(a, b, [[0.0, 3.0], [float("inf"), 0.0]])   # cost of each pair; +inf forbids one
    moment = build.row(limit=10.0)                        # a budget; as many rows as there are moments or devices
    build.use(moment, a, 0, 8.0)                          # option 0 of a takes 8 bytes in it; several uses add up
    build.hold(0, 1, b, 1, 5.0)                           # the same over a run of rows [begin, end)
    selection = solve(build.build(), seconds=60)          # .choice .cost .bound .gap .feasible .over .seconds .done

`solve(problem, seconds=60, work=None, gap=0.0, method="auto", seed=0, on_progress=None)` raises `InfeasibleError` (a
`ProblemError`) when it is proven that no choice fits. `contest.load` and `contest.dump` read and write
files.
Read `problem`, `solve`, `reductions` and `core` first, in that order; `docs/select.md` has the mathematics in one
place.
"""

from meshwright.select.builder import ProblemBuilder
from meshwright.select.problem import InfeasibleError, Problem
from meshwright.select.selection import Progress, Selection
from meshwright.select.solve import METHODS, solve

__all__ = ["METHODS", "InfeasibleError", "Problem", "ProblemBuilder", "Progress", "Selection", "solve"]
