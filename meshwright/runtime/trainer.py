"""The trainer: a model, parallelized by a plan, that the user's own optimizer and loop drive."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.capture import Batch, Precision, capture
from meshwright.capture.counter import RandomState
from meshwright.capture.program import Program
from meshwright.errors import MeshwrightError, RunError, counted, what_is
from meshwright.explain.words import headline
from meshwright.layout import Layout
from meshwright.layout.states import I
from meshwright.models.form import shaped
from meshwright.models.joined import Joined, joined
from meshwright.plan import Plan
from meshwright.price.check import check_plan
from meshwright.runtime.device import own_device
from meshwright.runtime.fail import tell_uncaught
from meshwright.runtime.outputs import Loss, arguments, caster, eval_mode, shared_out
from meshwright.runtime.step.batches import Index, check_detached
from meshwright.runtime.step.parts import Part, make_parts, shared_parts
from meshwright.runtime.step.peers import check_peers
from meshwright.runtime.step.ranges import check_ranges, explained
from meshwright.runtime.step.run import Maker, Run
from meshwright.runtime.step.units import check_unit
from meshwright.runtime.step_loss import StepLoss
from meshwright.runtime.variants import check_storage, fits, smaller_for
from meshwright.runtime.watch import Watch, default_timeout_s
from meshwright.runtime.weights.adoption import Adopted, Cut, check_no_gradients, idle_names, updated
from meshwright.runtime.weights.alike import check_weights_alike
from meshwright.runtime.weights.clip import ClippedStages, clip_gradients
from meshwright.runtime.weights.gathering import Forward, Gathering, OnlyWhole, ordinary_tensors
from meshwright.runtime.weights.hosted import mark_hosted
from meshwright.runtime.weights.members import guard_members
from meshwright.runtime.weights.optimizers import expect_optimizer
from meshwright.runtime.weights.scaling import LossScale
from meshwright.runtime.weights.sources import Weights, weights_of
from meshwright.runtime.weights.state_hooks import hook_state
from meshwright.runtime.weights.stepping import Stepping
from meshwright.runtime.weights.store import as_dtensor
from meshwright.runtime.weights.unchanged import Unchanged
from meshwright.runtime.world import check_alike, check_device, join_world
from meshwright.schedule.of_plan import forward_only
from meshwright.torch_compat import fake_mode, fake_tensor

LOGGER = logging.getLogger("meshwright.run")

WRITERS = ("save_pretrained", "push_to_hub")
"""Methods of models of other libraries that write their weights."""


COMPARED = 2
"""Steps of each size of the batch in which ranks compare what they read alike, without `debug` too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run may be told: the seed of its random numbers, whether to compare peers' data, how long to wait, what is
    compiled as one (nothing, where nothing is compiled)."""

    seed: int = 0
    debug: bool = False
    timeout_s: float = 0.0
    unit: str = ""
    loss: Loss = None


class Trainer:
    """`step` runs forward and backward of one global batch; gradients are then on `parameters()`.

    Parameters are DTensors in the plan's storage layout, so torch.optim, clipping and checkpoints work on them.
    """

    def __init__(
        self, weights: Weights, plans: Sequence[tuple[Plan, Program]], device: torch.device, settings: Settings
    ) -> None:
        """plans: the first one stores the parameters; others, of other sizes of the batch, share them."""
        plan, program = self.plan, self.program = plans[0]
        self.device = device
        self.seed, self.debug, self.steps, self._loss = settings.seed, settings.debug, 0, settings.loss
        self.loss_scale = LossScale() if plan.precision == "fp16" else None
        self.watch = Watch(settings.timeout_s)
        self._saved, self._under_way = frozenset(weights.model.state_dict()), ""
        self._compared: Counter[int] = Counter()
        self._maker, self._keeps_last = Maker(device, self.watch, settings.unit), False
        buffers = _buffers(weights, program, device)
        first = self._maker.make(plan, program, lambda place: make_parts(weights, plan, program, place), buffers)
        self.stage, self.instructions, self._batches = first.stage, first.instructions, first.batches
        self._interpreter, self._last, self._runs = first.interpreter, first.interpreter, [first]
        firsts = {parameter.name: program.uses_of(parameter.name)[0] for parameter in program.parameters}
        for part in first.interpreter.parts:
            mark_hosted(part.store.stored, plan, firsts, part.store.memory)
        self._adopt(weights, {name: cut for part in first.interpreter.parts for name, cut in part.cuts.items()})
        for other in plans[1:]:
            self._add_run(*other)
        self._planned = tuple(self._runs)

    def __repr__(self) -> str:
        """In one line: what is trained how, on which rank, how far it is."""
        plan = self.plan
        stage = f", stage {self.stage + 1} of {len(plan.stages)}" if len(plan.stages) > 1 else ""
        return (
            f"<Trainer of {type(self.model).__name__}: {headline(plan)}; rank {self.watch.rank} of {plan.world_size}"
            f"{stage} on {self.device}, global batch {plan.batch}, {counted(self.steps, 'step')} taken>"
        )

    def _add_run(self, plan: Plan, program: Program) -> Run:
        parts = tuple(self._interpreter.parts)
        shared = self._interpreter.buffers
        made = self._maker.make(plan, program, lambda place: shared_parts(parts, plan, program, place), shared)
        made.interpreter.counts = self._interpreter.counts
        made.interpreter.segments.keep_last(self._keeps_last)
        self._runs.append(made)
        return made

    def _run_for(self, batch: object, whole: bool) -> Run:
        """That of the batch's sizes; a smaller last batch gets one when it first comes."""
        alike = [run for run in self._runs if not run.batches.differs(batch)] or self._runs
        given = alike[0].batches.named(batch)
        for run in alike:
            if fits(run.batches, given, whole):
                return run
        for run in (run for run in self._planned if run in alike):
            plan = smaller_for(run.plan, run.batches, given, whole)
            if plan is not None:
                program = run.program.at_batch(plan.batch)
                check_plan(plan, program)
                return self._add_run(plan, program)
        return alike[0]

    def _adopt(self, weights: Weights, cuts: dict[str, Cut]) -> None:
        """The model's parameters and buffers become those that are stored here."""
        self.model = weights.model.model if isinstance(weights.model, Joined) else weights.model
        names = idle_names(weights.model, self.program)
        self._unused, idle_cuts = _idle(weights, names, self._interpreter.parts[0])
        self._idle_names, cuts = names, cuts | idle_cuts
        stored = dict(self.named_parameters()) | self._unused
        expect_optimizer(stored, self.plan.optimizer, cuts)
        old = {name: weights.named[name] for name in (*(p.name for p in self.program.parameters), *names)}
        self._clipped = ClippedStages(stored.values(), self.device) if len(self.plan.stages) > 1 else None
        replaced, copied = (old, ()) if weights.adopts else ({}, old.values())
        self._stepping = Stepping(stored, replaced, copied, self._clipped.before_optimizer if self._clipped else None)
        self._adopted = Adopted(weights.model, self.program, stored, cuts)
        self._adopted.keep_buffers(self._interpreter.buffers)
        self._gathering = Gathering(self._adopted, self.plan, self.program, self.device, self.model)
        hook_state(self._adopted, self._gathering)
        guard_members(self._adopted, self._gathering)
        self.model.forward = Forward(self.model, self._gathering, caster(self.device, self.plan.precision))
        for name in WRITERS:
            if callable(getattr(self.model, name, None)):
                vars(self.model)[name] = OnlyWhole(self.model, name, self._gathering)
        self._stepping.hand_over(cuts)
        self._trained = [(stored[p.name], p) for p in self.program.parameters if p.name in stored]
        self._unchanged = self._gathering.unchanged = Unchanged(weights.model, self._loss)

    def compare_captures(self, model: nn.Module, loss: Loss) -> None:
        """From now on changes inside the model's objects are judged by capturing it again."""
        plan, program = self.plan, self.program

        def same() -> bool:
            try:
                return _program(plan, model, loss) == program
            except MeshwrightError:
                return False

        self._unchanged.again = same

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those that live on this rank's stage; each lives on one."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        stored = {name: entry for part in self._interpreter.parts for name, entry in part.store.stored.items()}
        return iter([(p.name, stored[p.name]) for p in self.program.parameters if p.name in stored])

    def idle_parameters(self) -> Iterator[nn.Parameter]:
        """The model's parameters that the loss does not depend on: whole on every rank, and no step trains them."""
        return iter(self._unused.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters (DTensors) and buffers under the model's own names, tied ones under each of theirs: those of this
        rank's stage.

        Parameters that the loss does not depend on are there too: they are not trained.
        """
        found: dict[str, Tensor] = {}
        stored = dict(self.named_parameters())
        for parameter in self.program.parameters:
            if parameter.name in stored:
                for name in (parameter.name, *parameter.aliases):
                    found[name] = stored[parameter.name].data
        idle = {name: self._unused[first].data for first, names in self._idle_names.items() for name in names}
        return found | self._own_buffers() | idle

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole plain tensors in the host's memory, for `torch.save` and `load_state_dict` of a plain model. Call it on
        every rank; a model of which no host has room for a copy is written by `mw.export`."""
        found = self._gathering.full_state(self._saved)
        if isinstance(self._adopted.model, Joined):
            return {name.removeprefix("model."): one for name, one in found.items() if name.startswith("model.")}
        return found

    def _own_buffers(self) -> dict[str, Tensor]:
        """Those that this rank's segments keep up to date, and those that no segment changes; not those that the model
        itself leaves out (`persistent=False`)."""
        changed: dict[str, int] = {}
        for index, segment in enumerate(self.program.segments):
            changed.update(dict.fromkeys(updated(self.program, segment), index))
        own = self._interpreter.segments.part_of
        return {
            name: tensor
            for name, tensor in self._interpreter.buffers.items()
            if name in self._saved and (name not in changed or changed[name] in own)
        }

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all stages, is at most `max_norm`; returns what it was.

        Call it on every rank, where `torch.nn.utils.clip_grad_norm_` would be called.
        """
        norm = clip_gradients(self.plan, self._interpreter.parts, self.device, max_norm, norm_type)
        if self._clipped is not None:
            self._clipped.record()
        return norm

    def keep_last(self, wanted: bool = True) -> None:
        """The last micro-batch, whose backward comes at once, recomputes nothing whatever the plan says."""
        self._keeps_last = wanted
        for run in self._runs:
            run.interpreter.segments.keep_last(wanted)

    def count_bytes(self, wanted: bool = True) -> None:
        """From the next step on, count what micro-batches keep alive, `held_bytes`, and all that is: `peak_bytes`."""
        for run in self._runs:
            run.interpreter.counts = wanted

    @property
    def held_bytes(self) -> int:
        """The most that the last step's micro-batches kept alive on this rank at once, after any instruction."""
        return self._last.held_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was alive on this rank at once in the last step: parameters, gradients, copies, all that ops
        made. The batch, buffers and the optimizer's states are not among them."""
        return self._last.live.peak_bytes

    def __call__(self, batch: Batch) -> Any:
        """The model's outputs for these samples, in eval mode, without gradients. Entries of the batch that are for the
        loss function alone are left out.

        Every rank calls it, with samples of its own or the same. Parameters are gathered layer by layer and used whole:
        a rank computes its samples alone, whatever the plan splits.
        """
        with ordinary_tensors(), eval_mode(self.model), self.watch.during("forward"):
            return self.model(**arguments(self.model, batch, self._loss))

    def predict(self, batch: Batch) -> Any:
        """The same of a batch that all ranks are given alike: each runs its share of the rows and gets all outputs."""
        given = arguments(self.model, batch, self._loss)
        with ordinary_tensors(), eval_mode(self.model), self.watch.during("predict"):
            return shared_out(lambda part: self.model(**part), given)

    def gathered(self) -> AbstractContextManager[nn.Module]:
        """`with trainer.gathered() as model:` a plain model with whole weights, for `generate` and `save_pretrained`.

        Every rank enters and leaves it, and holds all weights in between, on its device; save on one of them. Weights
        that are changed inside are taken over: change them alike on every rank.
        """
        return self._gathering.everything()

    def data_slice(self) -> dict[str, Index]:
        """Which part of each tensor of the global batch this rank reads: `tensor[index]`; others it does not need.

        With micro-batches a rank reads a part of each, and its rows may be no single run; they are then listed.
        """
        return {name: self._batches.index(name) for name in self._batches.names}

    def step(self, batch: Batch, *, global_batch: bool = False) -> Tensor:
        """Forward and backward; returns the loss of the global batch. `batch`: this rank's slice, or the whole.

        With precision="fp16" gradients come divided by `loss_scale.scale`; of a step whose gradients are not finite
        there are none, and optimizers do nothing.
        """
        begun_s = time.perf_counter()
        self._check_call("trainer.step")
        if not torch.is_grad_enabled():
            raise RunError(
                "trainer.step under torch.no_grad() or torch.inference_mode(), which would leave gradients",
                "steps that train",
                "call trainer.evaluate(batch), which gives the loss and changes nothing",
            )
        self._unchanged.check()
        frozen = self._frozen()
        self._stepping.before()
        if self._clipped is not None:
            self._clipped.check()
        self._under_way = "" if global_batch else "refused its part of the batch"
        run = self._run_for(batch, global_batch)
        check_detached(run.batches.named(batch))
        if self.loss_scale is not None:
            self.loss_scale.check_empty(self.parameters())
            run.interpreter.segments.loss_scale = self.loss_scale.scale
        with ordinary_tensors(), self.watch.during(f"step {self.steps}"), explained(run.ranges, run.batches, batch):
            parts = self._parts(run, batch, global_batch)
            random = RandomState(self.seed, self.steps)
            self._under_way = "has not come to its end"
            loss = run.interpreter.run(run.instructions, parts, random)
            if self.loss_scale is not None:
                self.loss_scale.finish(self.parameters(), self.device)
        self._under_way, self._last = "", run.interpreter
        self._adopted.take_buffers(self._interpreter.buffers)
        for parameter, gradient, before in frozen:
            parameter.grad = gradient if gradient is None else gradient.copy_(before)
        self._stepping.after()
        if self._clipped is not None:
            self._clipped.record()
        self.steps += 1
        LOGGER.debug("step %d: %.4f s of the host", self.steps, time.perf_counter() - begun_s)
        return loss.as_subclass(StepLoss)

    def _frozen(self) -> list[tuple[nn.Parameter, Tensor | None, Any]]:
        """Parameters that were frozen since, whose gradients stay as they are, with a copy of these, to which the step
        adds; refuses such as were frozen before."""
        found = list[tuple[nn.Parameter, Tensor | None, Any]]()
        for parameter, planned in self._trained:
            if parameter.requires_grad and not planned.trainable:
                raise RunError(
                    f"{planned.name} requires a gradient, and did not when it was planned",
                    "parameters that were planned to be trained",
                    "call requires_grad_() first, then plan",
                )
            if planned.trainable and not parameter.requires_grad:
                found.append((parameter, parameter.grad, None if parameter.grad is None else parameter.grad.clone()))
        return found

    def evaluate(self, batch: Batch, *, global_batch: bool = False) -> Tensor:
        """The loss of a batch as the model in eval mode has it; changes nothing."""
        self._check_call("trainer.evaluate")
        run = self._run_for(batch, global_batch)
        with ordinary_tensors(), self.watch.during("evaluate"), explained(run.ranges, run.batches, batch):
            parts = self._parts(run, batch, global_batch)
            return run.interpreter.evaluate(forward_only(run.once_each()), parts)

    def _check_call(self, call: str) -> None:
        if self._gathering.open:
            raise RunError(f"{call} inside trainer.gathered()", "a step after it", "leave the `with` first")
        self._check_last_step()
        if torch.is_autocast_enabled(self.device.type):
            raise RunError(
                f"{call} inside torch.autocast",
                f"no autocast: the plan says what is computed in which dtype (precision={self.plan.precision!r})",
                "leave the `with torch.autocast`; plan with precision='mixed', 'bf16' or 'fp16' for half precision",
            )
        self._adopted.check()

    def _check_last_step(self) -> None:
        """After a step that raised: refuses to go on where other ranks may wait in it, else forgets that step."""
        if self._under_way and self.plan.world_size > 1:
            raise RunError(
                f"step {self.steps} {self._under_way} on rank {dist.get_rank()}, and other ranks may wait in it",
                "ranks that take the same steps",
                "start again from the last checkpoint; to leave out a batch, do so on all ranks before trainer.step",
            )
        if self._under_way:
            for run in self._runs:
                run.interpreter.abandon()
        self._under_way = ""

    def _parts(self, run: Run, batch: object, whole: bool) -> list[dict[str, Tensor]]:
        parts = run.batches.split(batch, whole)
        check_ranges(run.ranges, run.batches.named(batch), on_host=not self.debug)
        self._compared[id(run)] += 1
        if self.debug or (self._compared[id(run)] <= COMPARED and self.plan.world_size > 1):
            check_peers(parts, {name: run.batches.index(name) for name in run.batches.names})
        return parts


def _buffers(weights: Weights, program: Program, device: torch.device) -> dict[str, Tensor]:
    """In the dtypes that the step computes in."""
    dtypes = {name: buffer.type.dtype for buffer in program.buffers for name in (buffer.name, *buffer.aliases)}
    found = {}
    for name, tensor in weights.model.named_buffers():
        dtype = getattr(torch, dtypes[name]) if name in dtypes else tensor.dtype
        found[name] = weights.whole(name).to(device, dtype)
    return found


def _idle(weights: Weights, names: Iterable[str], part: Part) -> tuple[dict[str, nn.Parameter], dict[str, Cut]]:
    """Parameters that the loss does not depend on, whole on every rank: DTensors as the others are, so that what takes
    a list of tensors takes all of the model's parameters."""
    mesh = part.store.device_mesh
    layout = Layout.of(*[I] * mesh.ndim)
    found: dict[str, nn.Parameter] = {}
    cuts: dict[str, Cut] = {}
    for name in names:
        whole = weights.whole(name).to(weights.device).contiguous()
        like = as_dtensor(whole, mesh, layout, tuple(whole.shape))
        found[name] = nn.Parameter(like, requires_grad=weights.named[name].requires_grad)
        cuts[name] = Cut(layout, part.stage.mesh.sizes, part.at, like)
    return found, cuts


def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan | Sequence[Plan],
    loss: Callable[..., Tensor] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    debug: bool | None = None,
    timeout_s: float | None = None,
    compile: bool | str | None = None,
    device: str | None = None,
    copy: bool = False,
) -> Trainer:
    """The model under the plan, on this process's share of it. Call it on every rank, under torchrun.

    The model is adopted, as `fully_shard` does: its parameters become the stored DTensors, so that optimizers, made
    before or after, and `state_dict` mean the trainer's. With `copy=True` it is left as it is.

    plan: one; or several, for batches of other sizes (sequence lengths), which store parameters alike. A batch is run
    by the one that was made for its sizes; one of fewer samples by the same choices, where the axes divide them.

    model: one with weights; or a function that builds one, whose weights are then made one at a time, from `seed`,
    and never all on one rank; or one on the meta device, with `weights`. seed: of such weights, and of the random
    numbers that steps draw (dropout), whatever `torch.manual_seed` was called with. weights: safetensors, a file or a
    folder, of which each rank reads its part. debug: compare what ranks read that should read the same (also
    MESHWRIGHT_DEBUG=1). timeout_s: how long a rank waits for others before it names those that are late and ends (600).
    compile: by inductor, each distinct `segment` or `run` of segments, whichever is faster unless named; as the plan
    says unless given. device: `cuda` or `cpu`; by default CUDA where it is, unless the backend is gloo.
    """
    tell_uncaught()
    plans: list[Plan] = list(plan) if isinstance(plan, list | tuple) else [cast(Plan, plan)]
    _check_given(model, plans)
    if isinstance(model, nn.Module) and not copy:
        check_no_gradients(model)
    plan = plans[0]
    unit = check_unit(plan.compile if compile is None else compile)
    wait_s = default_timeout_s() if timeout_s is None else timeout_s
    join_world(plan, wait_s)
    place = own_device(device)
    check_device(plan, place, device)
    for one in plans:
        check_storage(plan, one)
        check_alike(one)
    given_loss = loss
    model, loss = joined(model, loss)
    found = weights_of(model, weights, seed, place, copy)
    programs = [_program(one, found.model, loss) for one in plans]
    found.check(programs[0])
    if found.files is None:
        check_weights_alike(found.named)
    wanted = os.environ.get("MESHWRIGHT_DEBUG", "") not in ("", "0") if debug is None else debug
    settings = Settings(seed, wanted, wait_s, unit, given_loss)
    trainer = Trainer(found, list(zip(plans, programs, strict=True)), place, settings)
    trainer.compare_captures(found.model, loss)
    LOGGER.info("rank %d of %d, stage %d, on %s: %r", trainer.watch.rank, plan.world_size, trainer.stage, place, plan)
    return trainer


def _program(plan: Plan, model: nn.Module, loss: Loss) -> Program:
    """That of the model for which the plan was made."""
    mode = fake_mode()
    batch = {name: fake_tensor(entry.shape, getattr(torch, entry.dtype), mode) for name, entry in plan.inputs.items()}
    batch = shaped(plan.form, batch)
    precision = cast(Precision, plan.precision)
    program = capture(model, batch, loss, precision=precision, allow=plan.answers)
    if len(program.segments) < len(plan.segments):  # cut by hand (`gpipe`), perhaps within what repeats
        program = capture(model, batch, loss, precision=precision, fine=True, allow=plan.answers)
    check_plan(plan, program)
    return program


def _check_given(model: object, plans: Sequence[object]) -> None:
    """Refuses what is no model and no plan at all, before processes meet."""
    if not callable(model):
        raise RunError(f"{what_is(model)} as the model", "an nn.Module, or a function that builds one", "give one")
    for plan in plans or [None]:
        if not isinstance(plan, Plan):
            raise RunError(f"{what_is(plan)} as the plan", "a Plan", "give what mw.plan or Plan.load gives")
