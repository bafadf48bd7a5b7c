"""Plans in which memory is saved in a way that has a name (`memory.methods`), pinned by `recompute=NAME`.

Shardings first, as `sweep` finds them under several budgets, then each saves memory in that way; the fastest that
fits. With `rotor` that is Colossal-Auto.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.pins.methods import ORDERED, check_method
from meshwright.pins.parts import pin_parts
from meshwright.plan import Plan
from meshwright.solve.intra.chain import chain_at
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain
from meshwright.solve.memory.methods import fixed_ways
from meshwright.solve.ordered import refine_nested
from meshwright.solve.points import Ways
from meshwright.solve.refine import refine_ways
from meshwright.solve.search import Candidate
from meshwright.solve.sweep import PARTS, swept
from meshwright.solve.together import DEAREST, Assemble

WORD = "recompute"

ANYWHERE = ("auto", "keep")
"""Methods that leave what is searched as it is."""

IN_STAGES = (*ANYWHERE, "flat", "full", "selective")
"""Methods that pipelines have too: each segment runs forward once. The others run segments in a nested order."""


def pinned_method(texts: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """(the method that pins ask for, `auto` if none does; the other pins)."""
    found = list(dict.fromkeys(pin_parts(text)[1] for text in texts if is_method(text)))
    if len(found) > 1:
        given = " and ".join(f"{WORD}={name}" for name in found)
        raise PlanError(f"pins {given}", f"one {WORD}", "drop one of them")
    for name in found:
        check_method(f"pin {WORD}={name}", name)
    return found[0] if found else "auto", tuple(text for text in texts if not is_method(text))


def is_method(text: str) -> bool:
    return pin_parts(text)[0] == WORD


def method_search(
    candidates: list[Candidate], program: Program, budget_bytes: int, assemble: Assemble, method: str
) -> Plan | None:
    """The fastest that fits; where none of the sweep does, that of the shardings that hold least."""

    def refined(chain: Chain, frontier: Frontier) -> Plan | None:
        return refine_by(assemble(chain, frontier), program, budget_bytes, method)

    best = swept(candidates, budget_bytes, refined, None, (*PARTS, 1.0))
    for candidate in candidates if best is None else ():
        frontier = candidate.frontier(candidate.microbatches[-1])
        plan = refined(chain_at(frontier, DEAREST), frontier)
        if plan is not None and (best is None or plan.predicted.step_s < best.predicted.step_s):
            best = plan
    return best


def refine_by(plan: Plan, program: Program, budget_bytes: int, method: str) -> Plan | None:
    """The plan with its sharding as it is, saving memory in this way; None where that does not fit."""
    if plan.predicted.static_bytes > budget_bytes:
        return None
    ways = Ways.of(plan, program, ())
    if method in ORDERED:
        return refine_nested(plan, program, ways, budget_bytes, method)
    picked = fixed_ways(program, ways.curves.plan, ways.curves.options, method)
    return refine_ways(plan, program, ways, budget_bytes, [(kept,) for kept in picked])


def no_stages(method: str) -> PlanError:
    """Where a pipeline was pinned beside."""
    others = f"{', '.join(IN_STAGES[1:-1])} or {IN_STAGES[-1]}"
    expected = f"one stage for a nested order, or {WORD}={others} in each"
    return PlanError(f"pin {WORD}={method} with stages", expected, "drop one of the pins")
