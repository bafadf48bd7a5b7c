"""Hand-made pipelines, and what one process makes of the same model: for tests that compare the two."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from families import SINGLE, family

from meshwright.capture import Program, capture
from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.planner.memory.plans import one_device_plan
from meshwright.planner.pipeline.by_hand import cut_stages, equal_cuts
from meshwright.planner.pipeline.realize import skipping
from meshwright.planner.plan import make_plan
from meshwright.predict.stage_traffic import rank_traffic
from meshwright.schedule import plan_pipeline

STEPS = 3
MESSAGES = ("send", "receive", "broadcast")


@cache
def program_of(name: str) -> Program:
    model, batch, reference = family(name)
    return capture(model, batch, reference.family.loss)


@cache
def inner_plan(name: str, size: int, pins: tuple[str, ...], microbatches: int) -> Plan:
    """A plan of one stage; on one device there is nothing to search for."""
    program = program_of(name)
    if size == 1:
        return replace(one_device_plan(program, load_cluster("local:1").mesh((1,))), microbatches=microbatches)
    return make_plan(program, load_cluster(f"local:{size}"), pins=(*pins, f"microbatch={microbatches}"))


def piped(
    name: str,
    sizes: Sequence[int],
    *,
    pins: Sequence[tuple[str, ...]] = (),
    microbatches: int = 4,
    schedule: str = "1f1b",
    rounds: int = 1,
    routed_via_stages: bool = False,
) -> Plan:
    """Stages of so many ranks with equal numbers of segments; `rounds`: parts of the chain that each runs;
    `routed_via_stages`: values that skip stages go from stage to stage."""
    own = pins or [()] * len(sizes)
    plans = [inner_plan(name, size, pin, microbatches) for size, pin in zip(sizes, own, strict=True)]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    ranks = [tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    cuts = equal_cuts(len(program_of(name).segments), len(sizes) * rounds)
    found = cut_stages(program_of(name), plans * rounds, cuts, schedule=schedule, ranks=ranks * rounds)
    if not routed_via_stages:
        return found
    far = skipping(plan_pipeline(found, program_of(name)))
    assert far
    return replace(found, routed_via_stages=tuple(far))


@cache
def plain(name: str, microbatches: int = 1) -> dict[str, Any]:
    """One process, three steps; with micro-batches, one after the other, where that is what the model is to do."""
    model, batch, _ = family(name)
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, first = [], {}
    for step in range(STEPS):
        total = 0.0
        for k in range(microbatches):
            rows = {key: value.chunk(microbatches)[k] for key, value in batch.items()}
            output = model(**rows)
            output = output if isinstance(output, torch.Tensor) else output.loss
            share = len(next(iter(rows.values()))) / len(next(iter(batch.values())))
            (output * share).backward()
            total += output.item() * share
        losses.append(total)
        if step == 0:
            first = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    weights = {key: p.detach().clone() for key, p in model.named_parameters()}
    return {"losses": losses, "gradients": first, "weights": weights, "buffers": dict(model.named_buffers())}


def trained(rank: int, name: str, plan_json: bytes) -> dict[str, Any]:
    """What one rank of a pipeline has after as many steps."""
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch, reference = family(name)
    trainer = parallelize(model, Plan.from_json(plan_json), reference.family.loss)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    losses, first = [], {}
    for step in range(STEPS):
        own = {key: batch[key][where] for key, where in trainer.data_slice().items()}
        with record() as traffic:
            losses.append(trainer.step(own).item())
        if step == 0:
            first = {key: p.grad.full_tensor() for key, p in trainer.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    weights = {key: p.full_tensor().detach() for key, p in trainer.named_parameters()}
    buffers = {key: value for key, value in trainer.state_dict().items() if type(value) is torch.Tensor}
    return {"losses": losses, "gradients": first, "weights": weights, "buffers": buffers, "traffic": traffic}


def compare_traffic(plan: Plan, name: str, found: Sequence[dict[str, Any]]) -> None:
    """Each rank communicated what the plan lists; what is recomputed repeats its collectives, never a message."""
    for rank, one in enumerate(found):
        said, done = rank_traffic(plan, program_of(name), rank), Counter(one["traffic"])
        if plan.recomputes:
            said, done = (Counter({c: n for c, n in some.items() if c.kind in MESSAGES}) for some in (said, done))
        assert done == said, f"rank {rank}: more {done - said}, less {said - done}"


def compare(name: str, found: Sequence[dict[str, Any]], microbatches: int = 1) -> None:
    """Every rank's loss; each stage's gradients and weights; all of the model's are somewhere."""
    true, loose = plain(name, microbatches), 1e-6 if name in SINGLE else 1e-9
    largest = max(gradient.abs().max() for gradient in true["gradients"].values())
    assert {key for one in found for key in one["gradients"]} == true["gradients"].keys()
    for one in found:
        for mine, other in zip(one["losses"], true["losses"], strict=True):
            assert abs(mine - other) <= 10 * loose * abs(other)
        for key, gradient in one["gradients"].items():
            expected = true["gradients"][key]
            error = (gradient - expected).abs().max()
            assert error <= max(10 * loose * expected.abs().max(), loose / 1000 * largest), key
        for key, weight in one["weights"].items():
            assert torch.allclose(weight, true["weights"][key], rtol=1000 * loose, atol=1000 * loose), key
        for key, value in one["buffers"].items():
            if key in true["buffers"]:
                assert torch.allclose(value, true["buffers"][key], rtol=loose, atol=1e-12), key
