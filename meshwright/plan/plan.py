"""The Plan: everything that was decided, as plain data that reads, compares, saves and loads as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import lcm, prod
from pathlib import Path
from typing import Any

import msgspec

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.cutting import MOST_NAMED, check_cut, cut_batch, has_samples
from meshwright.errors import ClusterError, LayoutError, PlanError, counted, what_is
from meshwright.layout import Layout
from meshwright.methods import method
from meshwright.plan.frontier import Choice
from meshwright.plan.grouped import grouped
from meshwright.plan.records import InputPlan, ParameterPlan, Prediction, Stage, StageLink
from meshwright.plan.search_log import SearchLog
from meshwright.plan.stages import stage_shared_values
from meshwright.plan.upgrade import OLDEST
from meshwright.plan.validate import UNDO, check_fields, check_loaded

SCHEMA = 3
WRITTEN = "JSON written by `meshwright plan -o`"


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Choices are shared: `segments[i]` is the index in `choices` of what segment i does, on the mesh of its stage.

    stages: in chain order; those on the same ranks are one physical stage that runs several parts of the chain.
    inputs: the batch tensors, by name. links: between stages that exchange anything. routed_via_stages: segments whose
    values go from stage to stage on their way to far readers; those of others are sent to each reader directly.
    order: of a plan of one stage whose segments run forward more than once, what a micro-batch does
    (`schedule.nested`). tasks: of a searched schedule, what each physical stage does, in order (`schedule.tasks`).
    headroom: the part of each device that is left free where `memory_bytes` is None.
    compile: segments are compiled by inductor; the plan is priced and run so. answers: the questions about values of
    the batch that capture was allowed to answer beforehand, a line each. form: of a batch that holds more than tensors
    by name, with its plain values (`models.form`). rules: the ops of the model by the tier that their rules came from.
    per_host: devices of each host, of a plan of several stages. weight_bytes: of each parameter, whole, in the dtype it
    is computed in; empty where unknown, and all count alike.
    search_log: the nodes of the search, their bounds, the incumbents and why nodes were pruned; no part of equality.
    """

    fingerprint: str
    model: str
    batch: int
    cluster: str
    stages: tuple[Stage, ...]
    inputs: dict[str, InputPlan]
    choices: tuple[Choice, ...]
    segments: tuple[int, ...]
    parameters: dict[str, ParameterPlan]
    predicted: Prediction
    microbatches: int = 1
    schedule: str = "one-stage"
    precision: str = "fp32"
    optimizer: str = "adamw"
    memory_bytes: int | None = None
    headroom: float = 0.0
    pins: tuple[str, ...] = ()
    links: tuple[StageLink, ...] = ()
    routed_via_stages: tuple[int, ...] = ()
    order: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    compile: bool = False
    answers: tuple[str, ...] = ()
    form: str = ""
    rules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    per_host: int = field(default=0, compare=False)
    weight_bytes: dict[str, int] = field(default_factory=dict, compare=False)
    search_log: SearchLog = field(default_factory=SearchLog, compare=False)
    schema: int = SCHEMA

    def __str__(self) -> str:
        return str(method("Plan.__str__")(self))

    def __repr__(self) -> str:
        return str(method("Plan.__repr__")(self))

    def _repr_html_(self) -> str:
        """For notebooks: the recommendation, small."""
        return str(method("Plan._repr_html_")(self))

    def explain(self) -> str:
        """What each axis does, where time and memory go, what binds."""
        return str(method("Plan.explain")(self))

    def diff(self, other: Plan) -> str:
        """What another plan decides differently."""
        _check_type("Plan.diff", other, Plan, "give a plan that mw.plan made or Plan.load read")
        return str(method("Plan.diff")(self, other))

    def price(self, program: Program) -> Plan:
        """The same plan with its prediction made anew from what it decides: what an edit costs."""
        _check_type("Plan.price", program, Program, "give what mw.capture(model, batch, loss) gives")
        priced: Plan = method("Plan.price")(self, program)
        return priced

    def report(self, path: str | os.PathLike[str], program: Program | None = None) -> None:
        """Write the plan as a page: one HTML file that needs no network.

        program: what the plan is of. Without it the model that was planned in this process is taken, or that which
        the plan names; where there is neither, the page has no layers and no timeline.
        """
        target = _path("Plan.report", path)
        if program is not None:
            _check_type("Plan.report", program, Program, "give what mw.capture(model, batch, loss) gives")
        method("Plan.report")(self, target, program)

    @property
    def mesh(self) -> Mesh:
        """The mesh of a plan of one stage."""
        if len(self.stages) != 1:
            raise PlanError(
                f"a plan of {len(self.stages)} stages",
                "one stage, for a mesh of the whole plan",
                "ask for stages[number].mesh",
            )
        return self.stages[0].mesh

    @property
    def groups(self) -> tuple[tuple[Stage, ...], ...]:
        """The physical stages: those of `stages` that the same ranks run."""
        return grouped(self.stages).groups

    def stage_of(self, segment: int) -> Stage:
        """The stage that runs a segment."""
        for stage in self.stages:
            if stage.first <= segment < stage.end:
                return stage
        raise PlanError(f"layer {segment}", f"one of {len(self.segments)}")

    def stage_at(self, rank: int) -> int:
        """The number of a rank's physical stage, in `groups`."""
        number = grouped(self.stages).numbers.get(rank)
        if number is None:
            raise PlanError(f"rank {rank}", f"one of the plan's {self.world_size} ranks")
        return number

    def home(self, program: Program, parameter: str) -> Stage:
        """The stage where a parameter lives: the first that reads it."""
        return self.stage_of(program.uses_of(parameter)[0])

    @property
    def microbatch(self) -> int:
        """Samples that run at a time; the last micro-batch may have fewer."""
        return cut_batch(self.batch, self.microbatches)[0]

    @property
    def remainder(self) -> Plan | None:
        """Where the last micro-batch is smaller, the plan all of whose micro-batches are like it; else None."""
        each, last = cut_batch(self.batch, self.microbatches)
        return None if each == last else replace(self, batch=last * self.microbatches)

    @property
    def cut(self) -> tuple[tuple[Plan, int], ...]:
        """How many micro-batches run as they do in which plan."""
        last = self.remainder
        return ((self, self.microbatches),) if last is None else ((self, self.microbatches - 1), (last, 1))

    @property
    def world_size(self) -> int:
        return len({rank for stage in self.stages for rank in stage.mesh.ranks})

    @property
    def recomputes(self) -> bool:
        """Whether any segment keeps something else than autograd would, or elsewhere."""
        return any(choice.recompute or choice.keep or choice.chunks > 1 or choice.offload for choice in self.choices)

    def choice(self, segment: int) -> Choice:
        return self.choices[self.segments[segment]]

    def common_layouts(self, program: Program, segment: int) -> dict[str, Layout]:
        """The layouts of a segment's common values, under their local names."""
        if not program.segments[segment].shared_values:
            return {}
        stage = self.stage_of(segment)
        names = stage_shared_values(program, stage.first, stage.end)
        made = stage.inputs | dict(zip(names, stage.prologue.outputs, strict=True))
        bound = program.segments[segment]
        pairs = zip(program.graph(bound).shared_values, bound.shared_values, strict=True)
        return {value.name: Layout.parse(made[name]) for value, name in pairs}

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, text: bytes, source: str = "the plan") -> Plan:
        try:
            plain = msgspec.json.decode(text)
            schema = plain["schema"] if isinstance(plain, dict) and "schema" in plain else None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            given = f"{source} is not a plan: {error}"
            raise PlanError(given, WRITTEN, "name a plan file") from error
        if schema is None:
            raise PlanError(f"{source} is not a plan: no field schema", WRITTEN, "name a plan file")
        if schema != SCHEMA:
            given = f"the text {schema!r}" if isinstance(schema, str) else schema
            old = f"meshwright plan --upgrade {source} -o NEW.json"
            todo = f"`{old}` reads it" if schema == OLDEST else "undo the edit, or plan again"
            raise PlanError(f"{source} has schema {given}", f"the number {SCHEMA}", todo)
        try:
            plan = msgspec.json.decode(text, type=cls)
        except msgspec.ValidationError as error:
            raise PlanError(
                f"{source} does not fit the schema: {error}", "the fields as planned", "undo the edit"
            ) from error
        check_fields(plain, msgspec.json.decode(msgspec.json.encode(plan)), source)
        plan.verify()
        check_loaded(plan)
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON, whole or not at all."""
        target = _path("Plan.save", path)
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            scratch.write_bytes(self.to_json())
            scratch.replace(target)
        except OSError as error:
            given = f"{target} cannot be written: {error.strerror}"
            raise PlanError(given, "a writable path", "name another") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        try:
            text = _path("Plan.load", path).read_bytes()
        except OSError as error:
            raise PlanError(f"{path} cannot be read: {error.strerror}", "a plan file", "check the path") from error
        return cls.from_json(text, str(path))

    def verify(self) -> None:
        """Facts that need no Program: indices, layouts that parse, stages that tile the chain."""
        ends = [stage.end for stage in self.stages]
        firsts = [stage.first for stage in self.stages]
        layers = counted(len(self.segments), "layer")
        if not self.stages or firsts != [0, *ends[:-1]]:
            covered = list(zip(firsts, ends, strict=True))
            raise PlanError(f"stages cover {covered}", f"all {layers}, each once and in order", UNDO)
        if ends[-1] != len(self.segments):
            entries = f"segments has {len(self.segments)} entries"
            expected = f"{ends[-1]}, one for each layer that stages[].first and .end name"
            raise PlanError(entries, expected, UNDO)
        if self.batch < 1:
            raise PlanError(f"batch is {self.batch}", "at least 1", "undo the edit")
        if self.batch >> 53:
            raise PlanError(f"batch has {self.batch.bit_length()} bits", "fewer than 2^53 samples", "undo the edit")
        for index, choice in enumerate(self.segments):
            if not 0 <= choice < len(self.choices):
                expected = f"0 to {len(self.choices) - 1}, the place of one of choices"
                if not self.choices:
                    raise PlanError("choices is empty", "one for each way that a layer runs", UNDO)
                raise PlanError(f"segments[{index}] is {choice}", expected, UNDO)
        for number, stage in enumerate(self.stages):
            try:
                stage.mesh.verify()
            except ClusterError as error:
                given = f"stages[{number}].mesh: {error.given}"
                raise PlanError(given, error.expected, "undo the edit, or plan again") from error
        for field_name, text, axes in self._layouts():
            try:
                count = len(Layout.parse(text))
            except LayoutError as error:
                raise PlanError(f"{field_name} is {text!r}", error.expected, "undo the edit") from error
            if count not in axes:
                wanted = " or ".join(map(str, sorted(axes)))
                raise PlanError(
                    f"{field_name} is {text}", f"one state for each of the {wanted} mesh axes", "undo the edit"
                )
        if not has_samples(self.batch, self.microbatches):
            given = f"microbatches is {self.microbatches} with a batch of {self.batch}"
            check_cut(given, self.batch, self.microbatches, "undo the edit", self._sample_ranks())
        self._check_ranks()

    def _sample_ranks(self) -> int:
        """Over how many ranks samples are split, as far as is known without the program: in the batch, and between
        layers where dim 0 is theirs."""
        found = [1]
        for stage in self.stages:
            read = [text for name, text in stage.inputs.items() if self._has_samples(name)]
            for index in dict.fromkeys(self.segments[stage.first : stage.end]):
                read += self.choices[index].inputs
            found += [prod(stage.mesh.sizes[axis] for axis in Layout.parse(text).sharding(0)) for text in read]
        return lcm(*found)

    def _has_samples(self, name: str) -> bool:
        return name in self.inputs and self.inputs[name].shape[:1] == (self.batch,)

    def _layouts(self) -> Iterator[tuple[str, str, set[int]]]:
        """Every layout of the plan: where it stands, its text, and how many axes it may have."""
        for number, stage in enumerate(self.stages):
            axes, where = {len(stage.mesh.axes)}, f"stages[{number}]"
            yield from ((f"{where}.inputs.{name}", text, axes) for name, text in stage.inputs.items())
            yield from ((f"{where}.prologue.outputs", text, axes) for text in stage.prologue.outputs)
            yield from ((f"{where}.tied_replicas.{name}", text, axes) for name, text in stage.tied_replicas.items())
            for index in dict.fromkeys(self.segments[stage.first : stage.end]):
                choice = self.choices[index]
                yield from ((f"choices[{index}].inputs", text, axes) for text in choice.inputs)
                yield from ((f"choices[{index}].outputs", text, axes) for text in choice.outputs)
                yield from ((f"choices[{index}].parameters.{n}", text, axes) for n, text in choice.parameters.items())
        anywhere = {len(stage.mesh.axes) for stage in self.stages}
        for name, parameter in self.parameters.items():
            yield f"parameters.{name}.storage", parameter.storage, anywhere
            yield f"parameters.{name}.compute", parameter.compute, anywhere

    def _check_ranks(self) -> None:
        """Two stages share all their ranks or none."""
        sets = [frozenset(stage.mesh.ranks) for stage in self.stages]
        for number, ranks in enumerate(sets):
            for other in range(number):
                both = ranks & sets[other]
                if both and ranks != sets[other]:
                    raise PlanError(
                        f"stages {other} and {number} share ranks {sorted(both)} and not the others",
                        "stages that share all their ranks or none",
                        UNDO,
                    )
        used = frozenset().union(*sets)
        if min(used) < 0:
            raise PlanError(f"stages[].mesh.ranks have {min(used)}", "0 or more", "undo the edit")
        if idle := list(islice((rank for rank in range(max(used) + 1) if rank not in used), MOST_NAMED)):
            raise PlanError(f"stages[].mesh.ranks leave out {idle}", f"all of 0 to {max(used)}", "undo the edit")

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


def _path(call: str, given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise PlanError(f"{call} of {what_is(given)}", "the path of a plan file", "give its path")
    return Path(given)


def _check_type(call: str, given: object, wanted: type, todo: str) -> None:
    if not isinstance(given, wanted):
        raise PlanError(f"{call} of a {type(given).__name__}", f"a {wanted.__name__}", todo)
