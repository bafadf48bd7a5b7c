"""Where the host's kernel launches set the pace of a step: said in a line, with what helps."""

from __future__ import annotations

from meshwright.plan.plan import Plan
from meshwright.plan.records import Prediction
from meshwright.plan.units import show_seconds

MUCH = 0.1
"""Of a step: more waiting for launches is worth a line."""

HOST_BOUND = "the host needs longer to launch the kernels than the devices to run them"


def is_host_bound(found: Prediction) -> bool:
    """Whether devices wait for kernel launches for a good part of a step; of a pipeline, those of some stage."""
    if found.stages:
        return any(stage.launch_s > (1 - MUCH) * stage.busy_s for stage in found.stages)
    return found.host_s > MUCH * found.step_s


def what_helps(compiled: bool) -> str:
    return "a larger batch helps" if compiled else "a larger batch or --compile helps"


def pace(plan: Plan) -> str:
    """One line where launches set the pace, or would without stages; else nothing."""
    found, helps = plan.predicted, what_helps(plan.compile)
    if not found.stages:
        share = found.host_s / found.step_s if found.step_s else 0.0
        waits = f"the host sets the pace: devices wait {share:.0%} of the step for kernel launches; {helps}"
        return waits if is_host_bound(found) else ""
    own = [stage.launch_s for stage in found.stages]
    whole_s = sum(own) / plan.microbatches  # at most what they take in one micro-batch
    if whole_s > found.step_s:
        return (
            f"stages win because the host sets the pace: one process needs {show_seconds(whole_s)} to launch the "
            f"kernels of all layers, a stage launches its own ({', '.join(map(show_seconds, own))}); {helps}"
        )
    slow = [str(number) for number, one in enumerate(found.stages) if one.launch_s > (1 - MUCH) * one.busy_s]
    where = f"stage{'s' * (len(slow) > 1)} {', '.join(slow)}"
    said = f"the host sets the pace of {where}: launching kernels takes as long as running them; {helps}"
    return said if slow else ""
