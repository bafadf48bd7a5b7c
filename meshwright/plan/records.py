"""What a Plan is made of: parameters, inputs, stages, links, and what is predicted of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.cluster import Mesh
from meshwright.layout import Collective
from meshwright.plan.frontier import Choice
from meshwright.plan.units import show_bytes, show_gap, show_seconds

OFFLOADS = ("", "optimizer", "weight")


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Where a parameter lives (`storage`, the optimizer's layout) and what the segments compute with, both on the
    mesh of the first stage that reads it.

    dtype: of what is stored, its gradient and optimizer state; segments compute in the Program's own.
    reshard_after_forward: the compute copy is dropped after forward and gathered again for backward (ZeRO-3).
    reduce_scatter_every_microbatch: the gradient is brought to the storage layout after each micro-batch (ZeRO-2), not
    once a step. offload: what of it lives in the host's memory, one of `OFFLOADS`: nothing; `optimizer`, its optimizer
    state; `weight`, what is stored of it, its gradient and its optimizer state.
    """

    storage: str
    compute: str
    dtype: str
    reshard_after_forward: bool = False
    reduce_scatter_every_microbatch: bool = False
    offload: str = ""

    def moves(self, dtype: str) -> bool:
        """Whether segments, which compute in dtype, compute with a copy of what is stored."""
        return self.on_host or (self.storage, self.dtype) != (self.compute, dtype)

    @property
    def on_host(self) -> bool:
        """Whether what is stored is in the host's memory: segments compute with a copy."""
        return self.offload == "weight"


@dataclass(frozen=True, slots=True)
class InputPlan:
    """A batch tensor: its whole shape and dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Segments [first, end) on one mesh, whose ranks are numbers of processes.

    inputs: the layout in which its ranks read each batch tensor that they need. prologue: how the common values that
    its segments read are made there, in the order of `stage_shared_values`. tied_replicas: weights that an earlier
    stage owns and that this one reads too, with the layout it computes in.
    """

    first: int
    end: int
    mesh: Mesh
    inputs: dict[str, str]
    prologue: Choice
    tied_replicas: dict[str, str] = field(default_factory=dict)

    @property
    def segments(self) -> range:
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True)
class StageLink:
    """From one physical stage to another, by their numbers in `Plan.groups`: what one rank gets when all send."""

    source: int
    target: int
    latency_s: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """A collective, or a message to or from another rank (its `axis` says which), that one rank takes part in so many
    times a step."""

    kind: str
    axis: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One rank of a physical stage. The tuples have an entry for each of its runs: seconds of a micro-batch, send_s to
    hand on what it makes. resident_bytes: of a micro-batch in flight. busy_s, exposed_s, bubble_s: of a step, as the
    simulator has them. traffic: of its first rank. launch_s: what its host needs to launch a step's kernels."""

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    send_s: tuple[float, ...]
    in_flight: int
    static_bytes: int
    resident_bytes: int
    transient_bytes: int
    peak_bytes: int
    busy_s: float
    exposed_s: float
    bubble_s: float
    traffic: tuple[Traffic, ...] = ()
    launch_s: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """Seconds of one step on the slowest device, bytes at the peak of the fullest one, and the proven gap.

    step_s is the sum of forward, backward, parameters (gathers and gradient reductions) and optimizer, less what of it
    overlaps compute (hidden_s), what the device waits for its host's kernel launches (host_s) and for copies from its
    host's memory (copies_s); communication_s is the part of it that collectives take. Of a pipeline these are the
    figures of the stage with most work, and step_s is more by what it waits. static_bytes: parameters and optimizer;
    of a pipeline gradients too. In plans of one stage these count from when they are made, among transient_bytes.
    host_bytes: in the host's memory, for each device. gap: 1 where no bound is known.
    """

    step_s: float
    forward_s: float
    backward_s: float
    parameters_s: float
    communication_s: float
    optimizer_s: float
    static_bytes: int
    resident_bytes: int
    transient_bytes: int
    peak_bytes: int
    gap: float
    collectives: tuple[Collective, ...] = ()
    stages: tuple[StagePrediction, ...] = ()
    bubble: float = 0.0
    hidden_s: float = 0.0
    host_s: float = 0.0
    host_bytes: int = 0

    def __repr__(self) -> str:
        """Short: collectives and stages are many."""
        shown = f"step {show_seconds(self.step_s)}, peak {show_bytes(self.peak_bytes)} per device, {show_gap(self.gap)}"
        lists = {"collectives": self.collectives, "stages": self.stages}
        counts = "".join(f", {len(found)} {name}" for name, found in lists.items() if found)
        return f"<Prediction: {shown}{counts}>"

    @property
    def copies_s(self) -> float:
        """Of a plan of one stage; of a pipeline they are among what stages wait."""
        work_s = self.forward_s + self.backward_s + self.parameters_s + self.optimizer_s - self.hidden_s
        return 0.0 if self.stages else max(0.0, self.step_s - self.host_s - work_s)

    @property
    def parts(self) -> tuple[tuple[str, int], tuple[str, int], tuple[str, int]]:
        """What the peak is made of, in words."""
        first = "parameters, gradients, optimizer" if self.stages else "parameters, optimizer"
        last = "temporary buffers" if self.stages else "gradients and temporary buffers"
        return (first, self.static_bytes), ("activations", self.resident_bytes), (last, self.transient_bytes)
