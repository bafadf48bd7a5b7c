"""Sharding and recomputation under one budget.

A price per byte charges what is held; what backward reads may be made again instead, for no less than the seconds of
what makes it. So `walk` finds shardings that are good where memory is dear, and

    bound(l) = min over chains of (seconds + charges at l) - l * room

is below every chain that recomputes what it likes. `refine` then settles exactly, for a sharding, what each instance
keeps, recomputes and chunks (`memory.plan`), on the traced pairs and their real peaks. Of the shardings met on one mesh
at different prices instances may take different ones (`mixture`). What is found one after the other (`sweep`) is
what is to be beaten; candidates are refined in the order of their bounds until none can win.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.price.overlap import late_bytes, runs_beside
from meshwright.solve.account import accounted
from meshwright.solve.intra.chain import chain_at, floor_s
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain
from meshwright.solve.intra.walk import least_cost
from meshwright.solve.memory.chain import Instance, least_peak_bytes, solve_instances
from meshwright.solve.memory.curve import Kept
from meshwright.solve.memory.inner import CHUNKS
from meshwright.solve.memory.plan import with_kept
from meshwright.solve.mixture import Offer, best_mixture
from meshwright.solve.ordered import refine_nested
from meshwright.solve.points import Ways
from meshwright.solve.search import Candidate, Progress
from meshwright.solve.sweep import swept

PRICES = (1e-12, 1e-11, 3e-11, 1e-10, 3e-10, 1e-9)
DEARER = (*PRICES[3:], 1e-8, 1e-6)
MOST_REFINED = 10
"""Shardings whose segments are traced; each takes seconds."""

WEIGHTS = (0.0, 1.0, 4.0)
"""Of what runs beside compute (`Frontier`): free, as dear as compute, dearer."""

MIXED = (0.25, 1.0, 4.0)
"""Weights at which mixtures are looked for."""

WORTH = 0.995
"""A bound closer to what is known than this is not looked into: tracing takes longer than that saves."""

ONWARD = 3
"""How many dearer prices are looked at though what was found fits: the bound charges less than making values again
takes, so that its own price may be too low."""

FEWER = (2,)
"""Chunks of backwards while shardings are compared; the best of them may have more."""

ROOM = 1.25
"""Shardings whose weights alone take so much of the budget are not traced."""

Assemble = Callable[[Chain, Frontier], Plan]
Options = Sequence[Sequence[Kept]]


@dataclass(frozen=True, slots=True)
class _Entry:
    bound_s: float
    candidate: Candidate
    microbatches: int
    price: float


def joint_search(
    candidates: list[Candidate],
    program: Program,
    budget_bytes: int,
    assemble: Assemble,
    best: Plan | None,
    progress: Progress | None = None,
    flat: bool = False,
) -> tuple[Plan | None, float]:
    """(the fastest plan, `best` where recomputation does not help; a bound on all of them). flat: every segment runs
    forward once, and nothing waits on the host."""

    def refined(chain: Chain, frontier: Frontier) -> Plan | None:
        return refine(assemble(chain, frontier), program, budget_bytes, FEWER, flat)

    best = swept(candidates, budget_bytes, refined, best)
    known_s = best.predicted.step_s if best else float("inf")
    entries = sorted(_entries(candidates, budget_bytes, known_s), key=lambda entry: entry.bound_s)
    bounds = []
    for number, entry in enumerate(entries):
        known_s = best.predicted.step_s if best else float("inf")
        bounds.append(entry.bound_s)
        if entry.bound_s >= WORTH * known_s or (best is not None and number >= MOST_REFINED):
            break
        plan = _fastest(entry, program, budget_bytes, assemble, known_s, flat)
        if plan is not None and plan.predicted.step_s < known_s:
            best = plan
            if progress:
                progress(f"{entry.candidate.name} x {entry.microbatches}, recomputing: {plan.predicted.step_s:.4g} s")
    if best is not None and len(best.stages) == 1 and best.recomputes and not best.order:
        last = refine(best, program, budget_bytes, flat=flat)
        best = last if last and last.predicted.step_s < best.predicted.step_s else best
    return best, min(bounds, default=known_s)


def _fastest(
    entry: _Entry, program: Program, budget_bytes: int, assemble: Assemble, known_s: float, flat: bool
) -> Plan | None:
    """Of the sharding that is fastest with all the memory it wants, those of the best bound, as long as none fits those
    of dearer bytes, and the best mixtures of all of them."""
    frontier = entry.candidate.frontier(entry.microbatches).recomputing()
    weighed = _weighed(frontier)
    found: list[Plan] = []
    met: list[tuple[Chain, Ways, Plan]] = []

    def look_at(chain: Chain) -> None:
        if chain.seconds >= known_s or any(is_same(chain, other) for other, _, _ in met):
            return  # making values again only takes longer
        if sum(point.point.static_bytes for point in chain.points) > ROOM * budget_bytes:
            return  # and makes weights no smaller; a mixture has little use for it
        plan = assemble(chain, frontier)
        ways = Ways.of(plan, program, FEWER)
        met.append((chain, ways, plan))
        refined = refine_ways(plan, program, ways, budget_bytes, ways.curves.options if flat else None)
        found.extend([refined] if refined else [])

    middle = weighed[len(weighed) // 2]
    look_at(chain_at(middle, 0.0))
    for number, price in enumerate((entry.price, *(price for price in DEARER if price > entry.price))):
        if found and number > ONWARD:
            break
        for base in (middle,) if found and number else weighed:
            look_at(chain_at(base, price * base.scale))
    for weight in MIXED if len(met) > 1 else ():
        least_s = min((plan.predicted.step_s for plan in found), default=known_s)
        room = budget_bytes - min(_late_bytes(ways, bare) for _, ways, bare in met)
        mixed = best_mixture(frontier, _offers(met), room, min(known_s, least_s), entry.price, weight)
        if mixed is not None:
            look_at(mixed)
    if met and not found:  # backwards in chunks; or segments run forward more than once, and keep not even their inputs
        _, ways, plan = min(met, key=lambda one: sum(point.held_bytes for point in one[1].points))
        last = refine(plan, program, budget_bytes, flat=flat)
        if last is None and not flat:
            last = refine_nested(plan, program, ways, budget_bytes)
        found += [last] if last else []
    return min(found, key=lambda one: one.predicted.step_s, default=None)


def _weighed(frontier: Frontier) -> list[Frontier]:
    """What is moved beside compute may hide behind it or not: each of these finds what is good in its case."""
    return [frontier.weighed(weight) for weight in WEIGHTS] if runs_beside(frontier.mesh) else [frontier]


def is_same(one: Chain, other: Chain) -> bool:
    """Whether two chains shard alike."""
    pairs = zip(one.points, other.points, strict=True)
    return all(a.point.choice == b.point.choice and a.parameters == b.parameters for a, b in pairs)


def _offers(met: list[tuple[Chain, Ways, Plan]]) -> list[list[Offer]]:
    """Per segment, what the chains do there with each of the ways to keep; the same once."""
    offers: list[list[Offer]] = []
    for index in range(len(met[0][0].points)):
        here: list[Offer] = []
        for chain, ways, _ in met:
            point, options = chain.points[index], chain.options[index]
            known = [(offer.options, offer.sharding.point, offer.sharding.parameters) for offer in here]
            if (options, point.point, point.parameters) not in known:
                kept = tuple(ways.point(index, one) for one in ways.curves.options[index])
                here.append(Offer(options, point, kept))
        offers.append(here)
    return offers


def least_bytes(candidate: Candidate, program: Program, assemble: Assemble) -> int:
    """The least peak of the sharding that holds least, everything made again that can be."""
    frontier = candidate.frontier(candidate.microbatches[-1])
    plan = assemble(chain_at(frontier, DEARER[-1]), frontier)
    ways = Ways.of(plan, program)
    return least_peak_bytes(_instances(ways, ways.curves.options), ways.static_bytes) + _late_bytes(ways, plan)


def _entries(candidates: list[Candidate], budget_bytes: int, known_s: float) -> list[_Entry]:
    """Every mesh and number of micro-batches that could be faster than what is known, at its best bound."""
    found = []
    for candidate in candidates:
        for number in candidate.microbatches:
            try:
                frontier = candidate.frontier(number).recomputing()
                if frontier.least_static() > budget_bytes:
                    break  # nor is there less of it in more of them
                if frontier.bounds and floor_s(frontier) >= known_s:
                    break  # more micro-batches are no faster
                best = _best_bound(frontier, budget_bytes, known_s)
            except PlanError:
                continue
            if best is not None:
                found.append(_Entry(best[0], candidate, number, best[1]))
    return found


def _best_bound(frontier: Frontier, budget_bytes: int, known_s: float) -> tuple[float, float] | None:
    """(bound, the price that gives it); None where it is no better than what is known."""
    best = (floor_s(frontier), 0.0)
    for price in PRICES:
        if best[0] >= known_s:
            return None
        bound_s = least_cost(frontier, price) - price * budget_bytes
        if bound_s < best[0] and best[1]:
            break  # bounds are concave in the price
        best = max(best, (bound_s, price))
    return best if best[0] < known_s else None


def refine(
    plan: Plan, program: Program, budget_bytes: int, chunks: tuple[int, ...] = CHUNKS, flat: bool = False
) -> Plan | None:
    """The plan with its sharding as it is, recomputing what it must to fit; None where even that does not fit. chunks:
    in which backwards of inner segments may run; each has to be traced. flat: nothing waits on the host."""
    if plan.predicted.static_bytes > budget_bytes:
        return None
    ways = Ways.of(plan, program, chunks)
    return refine_ways(plan, program, ways, budget_bytes, ways.curves.options if flat else None)


def refine_ways(
    plan: Plan, program: Program, ways: Ways, budget_bytes: int, options: Options | None = None
) -> Plan | None:
    """`refine`, with these ways to run the segments. options: what each may do, all of its ways unless given; values
    may wait on the host then, where the device's link to it is known."""
    late, offered = _late_bytes(ways, plan), ways.curves.options if options is None else options
    chosen = solve_instances(_instances(ways, offered), budget_bytes - late, ways.static_bytes)
    least_s = sum(min(kept.seconds for kept in found) for found in offered)
    if options is None and (chosen is None or chosen.seconds > least_s):
        for wider in ways.curves.wider():
            aside = wider.static_bytes - ways.curves.static_bytes
            other = solve_instances(_instances(ways, wider.options), budget_bytes - late - aside, ways.static_bytes)
            if other is not None and (chosen is None or other.seconds < chosen.seconds):
                chosen, offered = other, wider.options
    if chosen is None:
        return None
    picked = [found[number] for found, number in zip(offered, chosen.options, strict=True)]
    predicted = ways.predicted(picked, plan.microbatches)
    if predicted.peak_bytes > budget_bytes:
        return None
    return accounted(replace(with_kept(plan, picked), predicted=predicted), program)


def _late_bytes(ways: Ways, plan: Plan) -> int:
    """Gradients that wait for their reduction; no more wait where backward takes longer."""
    return late_bytes(ways.points, plan.microbatches)


def _instances(ways: Ways, options: Options) -> list[Instance]:
    """What each segment may keep, with the weights it gathers beside; those that are alike share it."""
    made: dict[tuple[int, int], list[Kept]] = {}
    for index, found in enumerate(options):
        key = (id(found), ways.gathered[index])
        if key not in made:
            made[key] = [ways.beside_weights(index, kept) for kept in found]
    return [Instance(made[id(found), ways.gathered[index]]) for index, found in enumerate(options)]
