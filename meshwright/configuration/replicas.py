"""Where hosts differ, each data-parallel replica has a step of its own; all wait for the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.cluster import Cluster, Device
from meshwright.configuration.configuration import Configuration
from meshwright.configuration.framework import PLAIN, Framework
from meshwright.configuration.meshes import alike
from meshwright.configuration.step import Step
from meshwright.configuration.transformer import Transformer
from meshwright.errors import ClusterError
from meshwright.plan import Prediction


def predict_configuration(
    model: Transformer, given: Configuration, cluster: Cluster, framework: Framework = PLAIN
) -> Prediction:
    """Seconds and bytes of one step on the slowest device. Raises PlanError where the configuration is impossible."""
    return predicted(steps_of(model, given, cluster, framework))


def steps_of(
    model: Transformer, given: Configuration, cluster: Cluster, framework: Framework = PLAIN
) -> tuple[Step, ...]:
    """One Step where all hosts are alike; else one for each kind of data-parallel replica, by devices and links."""
    _check_units(given, cluster)
    if alike(cluster.root):
        return (Step(model, given, cluster, framework),)
    given.verify(model, cluster.device_count)
    found: dict[object, Step] = {}
    for replica in range(given.dp):
        step = Step(model, given, cluster, framework, replica)
        wires = tuple(one.wire(stage) for stage, one in enumerate(step.stages[:-1]))
        found.setdefault((*((one.device, one.axis("tp"), one.axis("cp")) for one in step.stages), wires), step)
    return tuple(found.values())


def _check_units(given: Configuration, cluster: Cluster) -> None:
    """Products in float8 are priced where there are units for them alone."""
    lacking = [one.name for one in dict.fromkeys(cluster.devices) if not one.has_units("float8")]
    if given.precision.startswith("fp8") and lacking:
        raise ClusterError(
            f"precision={given.precision} on {' and '.join(lacking)}, without units for float8",
            "devices whose `peaks` have float8",
            "take precision=mixed, bf16 or fp16",
        )


def predicted(steps: Sequence[Step]) -> Prediction:
    """The step of the slowest replica, for which all wait before gradients are reduced; bytes of the fullest rank."""
    every = [one.predict() for one in steps]
    slowest, fullest = max(every, key=lambda one: one.step_s), max(every, key=lambda one: one.peak_bytes)
    return replace(
        slowest,
        static_bytes=fullest.static_bytes,
        peak_bytes=fullest.peak_bytes,
        transient_bytes=fullest.transient_bytes,
        host_bytes=max(one.host_bytes for one in every),
        gap=1.0,  # nothing was searched: no bound is known
    )


def tightest(steps: Sequence[Step]) -> tuple[Device, int]:
    """The device that is filled most, by its share, and what it holds at its peak."""
    return max((one for step in steps for one in step.held), key=lambda one: one[1] / one[0].usable_bytes)
