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
    """Seconds and bytes of a segment on one device of the mesh.

    forward_s, backward_input_s, backward_weight_s: per micro-batch. first_s, last_s, step_s: once per step
    (parameter gathers, gradient reduction, optimizer). overlappable_s: the part of first_s and last_s that the runtime
    overlaps compute. resident_bytes: kept per micro-batch in flight. static_bytes: parameters, gradients,
    optimizer. transients: on top, while the segment runs.

    again_s: the part of first_s that is paid at each use, scatter_s: that of last_s after each micro-batch; both of a
    whole step. late_bytes: what gradients take beyond their storage until they are reduced. early_bytes: what
    parameters that are gathered at each use take while another segment still runs. The host's seconds of asking for it
    all: forward_host_s, backward_host_s per micro-batch, step_host_s per step; zero on a CPU. forward_wire_s,
    backward_wire_s: of forward_s and backward_s, collectives on links that the parameters use too. lookup: backward
    reads no parameter. departures: in how many parts its gradients leave, one after the other while backward runs.
    carried_s: of overlappable_s, what the cores that compute carry themselves: it takes their time whenever it runs.
    slowed_s: per micro-batch, what compute takes longer while the rest of it runs (`cluster.contention`).
    """

    choice: Choice
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    first_s: float
    last_s: float
    step_s: float
    overlappable_s: float
    static_bytes: int
    resident_bytes: int
    forward_transient_bytes: int
    backward_transient_bytes: int
    again_s: float = 0.0
    scatter_s: float = 0.0
    late_bytes: int = 0
    early_bytes: int = 0
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    step_host_s: float = 0.0
    forward_wire_s: float = 0.0
    backward_wire_s: float = 0.0
    lookup: bool = False
    departures: int = 1
    carried_s: float = 0.0
    slowed_s: float = 0.0

    @property
    def hideable_s(self) -> float:
        """What compute may hide."""
        return max(0.0, self.overlappable_s - self.carried_s)

    @property
    def backward_s(self) -> float:
        """With what gathers and reductions slow: most of them overlap it."""
        return self.backward_input_s + self.backward_weight_s + self.slowed_s

    def seconds(self, microbatches: int = 1) -> float:
        """One step of so many micro-batches with nothing overlapped."""
        return microbatches * (self.forward_s + self.backward_s) + self.first_s + self.last_s + self.step_s

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
