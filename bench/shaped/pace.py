"""The pace of this machine: seconds here for one second of the shipped CPU profile, when all ranks compute at once.

One number, from a step of a model of the same family that no case has. A cluster description at this pace is what a
user would get from `meshwright calibrate` on machines as fast as the ranks are here. By the wall clock several ranks
may share a core; by the CPU's, each has one to itself, as where most of them wait most of the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

YARDSTICKS = {
    "gpt": "gpt?layers=3&hidden=448&heads=8&ffn=1792&vocab=512&seq=64&tied=false",
    "llama": "llama?layers=3&hidden=448&heads=8&kv_heads=8&ffn=1216&vocab=512&seq=64&tied=false",
}
BATCH = 8
SMALL_BATCH = 2
"""As large as the micro-batches of pipelines."""
_PAYLOAD = 1448 / 1514  # of each Ethernet frame, TCP carries this part


def both_ways(other: int, mbit: int, times: int = 3) -> float:
    """Of a link's rate, what rank 0 and another reach when they send a mebibyte to each other, over a group
    for each way as stages do; 1 at most, on rank 0."""
    import torch
    import torch.distributed as dist

    spent, mine = [], dist.get_rank()
    up, down = dist.new_group(), dist.new_group()
    for _ in range(times + 1):
        dist.barrier()
        start = time.perf_counter()
        if mine in (0, other):
            peer, out, into = (other, up, down) if mine == 0 else (0, down, up)
            begun = [
                dist.isend(torch.zeros(1 << 18), peer, group=out),
                dist.irecv(torch.zeros(1 << 18), peer, group=into),
            ]
            for one in begun:
                one.wait()
        spent.append(time.perf_counter() - start)
    return min(1.0, (1 << 20) / payload_rate(mbit) / sorted(spent[1:])[times // 2])


def payload_rate(mbit: float) -> float:
    """Bytes a second that a link of this rate carries."""
    return mbit * 1e6 / 8 * _PAYLOAD


def shaped_cluster(hosts: int, ranks: int, mbit: float, pace: float) -> Any:
    """Hosts of so many ranks at this pace, joined by links of this rate."""
    from meshwright.cluster import Group, Link, Member, load_cluster

    local = load_cluster(f"local:{ranks}")
    root = Group("pod", Link(2e-4, payload_rate(mbit)), (Member(local.root, hosts),))
    return replace(local, name="shaped", root=root, devices=(at_pace(local.devices[0], pace),))


def at_pace(device: Any, pace: float) -> Any:
    """Prices are the profile's at the device's own rates, so other rates are another pace."""
    return replace(
        device,
        peaks=tuple((dtype, rate / pace) for dtype, rate in device.peaks),
        memory_bandwidth=device.memory_bandwidth / pace,
        launch_s=device.launch_s * pace,
        profile="",
    )


def plan_at_pace(plan: Any, program: Any, pace: float, core_of: Callable[[int], str] | None = None) -> Any:
    """A plan priced again for the pace at which the machine ran it. core_of: a rank's, where ranks share cores and the
    pace is that of one which has a core to itself."""
    from meshwright.cluster import load_cluster
    from meshwright.planner.reprice import reprice

    device = at_pace(load_cluster("local").devices[0], pace)
    stages = [replace(stage, mesh=replace(stage.mesh, device=device)) for stage in plan.stages]
    paced = replace(plan, stages=tuple(stages))
    if plan.schedule != "searched" and (core_of is None or len(plan.stages) == 1):
        return reprice(paced, program)
    return _as_ordered(plan, paced, program, core_of)


def pace_of(plan: Any, paces: dict[str, float]) -> float:
    """Of those at BATCH and at SMALL_BATCH, the one at about as many samples as a rank of the plan has at a time."""
    samples = plan.microbatch / plan.stages[0].mesh.world_size
    return paces["small" if samples < (BATCH * SMALL_BATCH) ** 0.5 else "large"]


def _as_ordered(plan: Any, paced: Any, program: Any, core_of: Callable[[int], str] | None) -> Any:
    """A searched order comes from the predictions that a plan was made with; it is what runs, at whatever pace."""
    from meshwright.predict.costs import plan_costs
    from meshwright.schedule import plan_lists, plan_pipeline
    from meshwright.simulate import simulate

    pipeline = plan_pipeline(plan, program)
    costs = plan_costs(paced, program, pipeline)
    if core_of is not None:
        costs = _on_cores(plan, costs, core_of)
    found = simulate(plan_lists(plan, program), costs, reads=pipeline.reads)
    rows = zip(plan.predicted.stages, found.stages, strict=True)
    stages = tuple(replace(one, peak_bytes=times.peak_bytes) for one, times in rows)
    return paced.with_prediction(step_s=found.step_s, stages=stages)


def _on_cores(plan: Any, costs: Any, core_of: Callable[[int], str]) -> Any:
    """Ranks of a stage that share a core take as much longer; stages that do take turns."""
    every = [Counter(map(core_of, group[0].mesh.ranks)) for group in plan.groups]
    segments = list(costs.segments)
    for group, cores in zip(plan.groups, every, strict=True):
        more = max(cores.values())
        for index in (index for stage in group for index in stage.segments):
            one = segments[index]
            seconds = {
                name: more * getattr(one, name)
                for name in ("forward_s", "backward_input_s", "backward_weight_s", "step_s", "recompute_s")
            }
            segments[index] = replace(one, **seconds)
    return replace(costs, segments=segments, cores={number: tuple(cores) for number, cores in enumerate(every)})


def yardsticks(model: str) -> Callable[[int], dict[str, float]]:
    """The paces by the wall clock, medians of so many steps: ops of few samples are further from a profile."""
    steps = {"small": yardstick(model, samples=SMALL_BATCH), "large": yardstick(model)}
    return lambda times: {name: median([step() for _ in range(times)]) for name, step in steps.items()}


def yardstick(model: str, clock: Callable[[], float] = time.perf_counter, samples: int = BATCH) -> Callable[[], float]:
    """A step of this rank alone, of a model like the named one; it returns the pace by the clock."""
    import torch

    from meshwright.capture import capture
    from meshwright.cluster import load_cluster
    from meshwright.models.reference import parse_reference
    from meshwright.planner.memory.options import plan_points
    from meshwright.planner.memory.plans import one_device_plan
    from meshwright.predict.fast import quick_prediction

    reference = parse_reference(YARDSTICKS[model.partition("?")[0]])
    program = capture(*reference.meta(samples))
    plan = one_device_plan(program, load_cluster("local").mesh((1,)))
    said_s = quick_prediction(plan_points(plan, program), 1, exact_peak=False).step_s
    batch = {name: torch.randint(0, 256, shape) for name, (shape, _) in reference.shapes(samples).items()}
    model = reference.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        start = clock()
        model(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return (clock() - start) / said_s

    return step
