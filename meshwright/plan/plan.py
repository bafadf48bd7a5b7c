"""The Plan: everything that was decided, as plain data that reads, compares, saves and loads as JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.layout import Collective, Layout
from meshwright.plan.frontier import Choice

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Where a parameter lives (`storage`, the optimizer's layout) and what the segments compute with.

    dtype: of what is stored, its gradient and optimizer state; segments compute in the Program's own.
    regather: the compute copy is dropped after forward and gathered again for backward (ZeRO-3). scatter: the
    gradient is brought to the storage layout after each micro-batch (ZeRO-2), not once a step.
    """

    storage: str
    compute: str
    dtype: str
    regather: bool = False
    scatter: bool = False


@dataclass(frozen=True, slots=True)
class InputPlan:
    """A batch tensor: its whole shape and dtype, and the layout in which ranks read it."""

    shape: tuple[int, ...]
    dtype: str
    layout: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Segments [first, end) on one mesh."""

    first: int
    end: int
    mesh: Mesh


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one step on the slowest device, bytes at the peak of the fullest one, and the proven gap.

    step_s is the sum of forward, backward, parameters (gathers and gradient reductions) and optimizer;
    communication_s is the part of it that collectives take.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Choices are shared: `segments[i]` is the index in `choices` of what segment i does.

    inputs: the batch tensors, by name. prologue: how common values are made from them.
    """

    fingerprint: str
    model: str
    batch: int
    cluster: str
    stages: tuple[Stage, ...]
    inputs: dict[str, InputPlan]
    prologue: Choice
    choices: tuple[Choice, ...]
    segments: tuple[int, ...]
    parameters: dict[str, ParameterPlan]
    predicted: Prediction
    microbatches: int = 1
    schedule: str = "one-stage"
    precision: str = "fp32"
    optimizer: str = "adamw"
    memory_bytes: int | None = None
    pins: tuple[str, ...] = ()
    schema: int = SCHEMA

    def __str__(self) -> str:
        from meshwright.plan.describe import describe

        return describe(self)

    def explain(self) -> str:
        """What each axis does, where time and memory go, what binds."""
        from meshwright.plan.explain import explain

        return explain(self)

    def diff(self, other: Plan) -> str:
        """What another plan decides differently."""
        from meshwright.plan.diff import diff

        return diff(self, other)

    @property
    def mesh(self) -> Mesh:
        """The mesh of a plan of one stage."""
        return self.stages[0].mesh

    @property
    def microbatch(self) -> int:
        """Samples that run at a time."""
        return self.batch // self.microbatches

    @property
    def world_size(self) -> int:
        return sum(stage.mesh.world_size for stage in self.stages)

    def choice(self, segment: int) -> Choice:
        return self.choices[self.segments[segment]]

    def common_layouts(self, program: Program, segment: int) -> dict[str, Layout]:
        """The layouts of a segment's common values, under their local names."""
        made = {name: entry.layout for name, entry in self.inputs.items()}
        made |= dict(zip(program.commons, self.prologue.outputs, strict=True))
        bound = program.segments[segment]
        pairs = zip(program.graph(bound).commons, bound.commons, strict=True)
        return {value.name: Layout.parse(made[name]) for value, name in pairs}

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, text: bytes, source: str = "the plan") -> Plan:
        try:
            schema = msgspec.json.decode(text)["schema"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise PlanError(f"{source} is not a plan: {error}", "JSON written by `meshwright plan -o`") from error
        if schema != SCHEMA:
            raise PlanError(f"{source} has schema {schema}", f"schema {SCHEMA}", "make the plan again")
        try:
            plan = msgspec.json.decode(text, type=cls)
        except msgspec.ValidationError as error:
            raise PlanError(
                f"{source} does not fit the schema: {error}", "the fields as planned", "undo the edit"
            ) from error
        plan.verify()
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON, whole or not at all."""
        target = Path(path)
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            scratch.write_bytes(self.to_json())
            scratch.replace(target)
        except OSError as error:
            raise PlanError(f"{target} cannot be written: {error.strerror}", "a writable path") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise PlanError(f"{path} cannot be read: {error.strerror}", "a plan file", "check the path") from error
        return cls.from_json(text, str(path))

    def verify(self) -> None:
        """Facts that need no Program: indices, layouts that parse, stages that tile the chain."""
        ends = [stage.end for stage in self.stages]
        firsts = [stage.first for stage in self.stages]
        if not self.stages or firsts != [0, *ends[:-1]] or ends[-1] != len(self.segments):
            raise PlanError(
                f"stages cover {list(zip(firsts, ends, strict=True))}", f"all {len(self.segments)} segments"
            )
        for index, choice in enumerate(self.segments):
            if not 0 <= choice < len(self.choices):
                raise PlanError(f"segments[{index}] is {choice}", f"0 to {len(self.choices) - 1}")
        axes = len(self.mesh.axes)
        texts = [(f"inputs.{name}", entry.layout) for name, entry in self.inputs.items()]
        for index, choice_made in enumerate(self.choices):
            texts += [(f"choices[{index}].inputs", text) for text in choice_made.inputs]
            texts += [(f"choices[{index}].outputs", text) for text in choice_made.outputs]
        for name, parameter in self.parameters.items():
            texts += [
                (f"parameters.{name}.storage", parameter.storage),
                (f"parameters.{name}.compute", parameter.compute),
            ]
        for field, text in texts:
            if len(Layout.parse(text).states) != axes:
                raise PlanError(f"{field} is {text}", f"one state for each of the {axes} mesh axes")
        for stage in self.stages:
            stage.mesh.verify()

    def check_program(self, program: Program) -> None:
        """Refuse a plan that was made for another model."""
        found = program.fingerprint()
        if found != self.fingerprint:
            name = f" ({self.model})" if self.model else ""
            raise PlanError(
                f"the plan is for another model{name}: its fingerprint is {self.fingerprint}, this model's {found}",
                "the model it was made for, unchanged",
                "plan again for this model",
            )

    def with_prediction(self, **changes: Any) -> Plan:
        return replace(self, predicted=replace(self.predicted, **changes))
