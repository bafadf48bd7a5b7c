"""FrontierPoint: one way to run a segment on a mesh; what sharding, memory and pipelines exchange."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from meshwright.errors import VerifyError


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided for a segment. Layouts are text (`[S(0), R]`), strategies the factors given to axes.

    parameters: the compute layout of each. recompute: values that backward reads and that are not kept; keep: values
    that are kept besides, for it to compute from. Both by name: `linear_2` is a value of the segment, `rms_norm~1`
    something else that an op makes. chunks: of the samples; of the last segment, or
    of another's backward. offload: what of the kept waits on the host.
    """

    graph: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    strategies: dict[str, str]
    parameters: dict[str, str] = field(default_factory=dict)
    recompute: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    chunks: int = 1
    offload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """Seconds and bytes of one segment on one device of the mesh.

    forward_s, backward_input_s, backward_weight_s: seconds of each pass, per micro-batch.
    gather_params_s: parameter gathers, per step.
    reduce_grads_s: gradient reductions, per step.
    step_s: the optimizer, per step.
    overlappable_s: the part of gather_params_s and reduce_grads_s that the runtime overlaps with compute.
    static_bytes: parameters, gradients and optimizer state.
    resident_bytes: activations kept, per micro-batch in flight.
    forward_transient_bytes, backward_transient_bytes: used on top while the pass runs.
    gather_per_use_s: the part of gather_params_s that is paid at each use (ZeRO-3), summed over a step.
    reduce_per_microbatch_s: the part of reduce_grads_s that is paid after each micro-batch, summed over a step.
    pending_grad_bytes: what gradients take beyond their storage until they are reduced.
    prefetched_param_bytes: what parameters gathered at each use take while another segment still runs.
    forward_host_s, backward_host_s: the host's seconds of launching a pass, per micro-batch; zero on a CPU.
    step_host_s: the host's seconds of launching the rest, per step.
    forward_wire_s, backward_wire_s: the part of a pass that is collectives on links which the parameters use too.
    lookup: backward reads no parameter (an embedding).
    grad_buckets: equal parts in which gradients leave while backward runs.
    core_driven_comm_s: the part of overlappable_s that takes the time of the cores that compute.
    slowed_s: how much longer compute takes while the rest of it runs, per micro-batch (`cluster.contention`).
    """

    choice: Choice
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    gather_params_s: float
    reduce_grads_s: float
    step_s: float
    overlappable_s: float
    static_bytes: int
    resident_bytes: int
    forward_transient_bytes: int
    backward_transient_bytes: int
    gather_per_use_s: float = 0.0
    reduce_per_microbatch_s: float = 0.0
    pending_grad_bytes: int = 0
    prefetched_param_bytes: int = 0
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    step_host_s: float = 0.0
    forward_wire_s: float = 0.0
    backward_wire_s: float = 0.0
    lookup: bool = False
    grad_buckets: int = 1
    core_driven_comm_s: float = 0.0
    slowed_s: float = 0.0

    @property
    def async_comm_s(self) -> float:
        """Gathers and reductions that can hide behind compute."""
        return max(0.0, self.overlappable_s - self.core_driven_comm_s)

    @property
    def backward_s(self) -> float:
        """With what gathers and reductions slow: most of them overlap it."""
        return self.backward_input_s + self.backward_weight_s + self.slowed_s

    def seconds(self, microbatches: int = 1) -> float:
        """One step of so many micro-batches with nothing overlapped."""
        return (
            microbatches * (self.forward_s + self.backward_s) + self.gather_params_s + self.reduce_grads_s + self.step_s
        )

    @property
    def held_bytes(self) -> int:
        """What stays from this segment's forward to its backward, parameters included."""
        return self.static_bytes + self.resident_bytes

    @property
    def transient_bytes(self) -> int:
        return max(self.forward_transient_bytes, self.backward_transient_bytes)

    def verify(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name != "choice" and not value >= 0:
                raise VerifyError(f"FrontierPoint.{entry.name} is {value}", "zero or more")
