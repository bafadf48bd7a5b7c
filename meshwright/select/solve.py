"""`solve`: the one door to the engine and to every method it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from meshwright.errors import ProblemError
from meshwright.select.budget import Budget
from meshwright.select.problem import Problem
from meshwright.select.selection import Progress, Selection, judge

METHODS = ("auto", "ilp", "elimination", "beam", "recursive", "mcmc", "mcts", "rl")

# A method: (problem, budget, seed) -> (choice, bound, what was done). Raises InfeasibleError when it proves that
# there is none.
Method = Callable[[Problem, Budget, int], tuple[list[int], float, list[str]]]


def solve(
    problem: Problem,
    seconds: float = 60,
    work: float | None = None,
    gap: float = 0.0,
    method: str = "auto",
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Selection:
    """The best choice found within `seconds`, with a bound no choice can beat.

    With `work` (millions of elementary steps) in place of seconds the result depends on problem, work and seed
    alone. Stops early once the gap is at most `gap`. Raises `InfeasibleError`, a `ProblemError`, when it is proven
    that no choice exists; when none was found in time, the Selection says so (`feasible`, `over`).
    """
    check(seconds, work, gap, method, seed)
    budget = Budget(seconds=seconds, work=work, gap=gap, on_progress=on_progress)
    choice, bound, done = _method(method)(problem.verify(), budget, seed)
    return judge(problem, choice, bound, budget.elapsed(), method, done)


def check(seconds: float, work: float | None, gap: float, method: str, seed: int) -> None:
    """Refuses settings that mean nothing."""
    if method not in METHODS:
        raise ProblemError(f"method {method!r}", "one of " + ", ".join(METHODS), "name one of these")
    if not seconds > 0:
        raise ProblemError(f"a limit of {seconds} seconds", "more than 0", "give one such as 60")
    if work is not None and not work > 0:
        raise ProblemError(f"a limit of {work} million steps", "more than 0", "give one such as 100")
    if not 0 <= gap <= 1:
        todo = "give one such as 0.01 for one per cent, or 0 for the best"
        raise ProblemError(f"a gap of {gap}", "a part, from 0 to 1", todo)
    if seed < 0:
        raise ProblemError(f"seed {seed}", "0 or more", "give one such as 0")


def _method(name: str) -> Method:
    found: Method = import_module(f"meshwright.select.methods.{name}").search
    return found
