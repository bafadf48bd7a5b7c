"""`mw.gpipe`: GPipe's interface. The choices are given: partitions, micro-batches, replicas, balance, recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from meshwright.capture import Batch, Precision, capture
from meshwright.capture.coupling.parts import check_in_parts
from meshwright.capture.optimizer import check_optimizer
from meshwright.capture.program import Program
from meshwright.cluster import Device, load_cluster
from meshwright.cutting import cut_batch, nearest
from meshwright.errors import PlanError, counted
from meshwright.plan import FrontierPoint, Plan
from meshwright.planner.memory.options import plan_points
from meshwright.planner.memory.plans import one_device_plan
from meshwright.planner.one_device import one_device_cluster, one_device_mesh
from meshwright.planner.pipeline.balance import balanced_cuts
from meshwright.planner.pipeline.by_hand import cut_stages, priced_on, recomputing
from meshwright.planner.plan import make_plan
from meshwright.price.parameter import Setting
from meshwright.runtime.fit import this_device
from meshwright.runtime.trainer import Trainer, parallelize

CHECKPOINTS = ("always", "except_last", "never", "auto")
Balance = str | Sequence[int]


def gpipe(
    model: nn.Sequential,
    batch: Batch,
    loss: Callable[..., Tensor] | None = None,
    *,
    partitions: int,
    microbatches: int,
    replicas: int = 1,
    balance: Balance = "time",
    checkpoint: str = "except_last",
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    seed: int = 0,
    copy: bool = False,
    allow: str | Iterable[str] = (),
) -> Trainer:
    """A Sequential cut into `partitions`, on as many ranks times `replicas`; call it on every one of them.

    batch: one global batch, or fakes of its shapes. balance: cut so that the partitions' predicted "time" or "memory"
    is as equal as can be, or the number of modules in each. checkpoint: segments recompute in backward "always", in all
    micro-batches "except_last", "never", or where their partition would not fit otherwise ("auto"). copy: leave the
    model as it is, instead of adopting it (`parallelize`). allow: as of `mw.plan`.
    """
    plan = gpipe_plan(
        model,
        batch,
        loss,
        partitions=partitions,
        microbatches=microbatches,
        replicas=replicas,
        balance=balance,
        checkpoint=checkpoint,
        optimizer=optimizer,
        precision=precision,
        device=this_device(),
        allow=allow,
    )
    trainer = parallelize(model, plan, loss, seed=seed, copy=copy)
    trainer.keep_last(checkpoint == "except_last")
    return trainer


def gpipe_plan(
    model: nn.Sequential,
    batch: Batch,
    loss: Callable[..., Tensor] | None = None,
    *,
    partitions: int,
    microbatches: int,
    replicas: int = 1,
    balance: Balance = "time",
    checkpoint: str = "except_last",
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    device: Device,
    allow: str | Iterable[str] = (),
) -> Plan:
    """The plan of `gpipe`, for a device that need not be here."""
    if not isinstance(model, nn.Sequential):
        raise PlanError(
            f"a {type(model).__name__}", "an nn.Sequential", "wrap its layers in one, or let mw.plan find the stages"
        )
    if checkpoint not in CHECKPOINTS:
        raise PlanError(f"checkpoint {checkpoint!r}", f"one of {', '.join(CHECKPOINTS)}", "name one of these")
    check_optimizer(optimizer)
    _check_counts(partitions=partitions, microbatches=microbatches, replicas=replicas)
    balance = _checked(balance, partitions, len(model))
    program = _capture(model, batch, loss, precision, allow)
    if not _can_be_cut(model, program, partitions, balance):
        program = _capture(model, batch, loss, precision, allow, fine=True)
    _check_sizes(program, microbatches, replicas)
    check_in_parts(program, microbatches)
    inner = _inner(program, microbatches, replicas, optimizer, precision, device)
    points = plan_points(inner, program)
    cuts = _cuts(model, program, partitions, balance, points, microbatches)
    plan = cut_stages(program, [inner] * partitions, cuts, schedule="gpipe")
    cluster = load_cluster(f"local:{plan.world_size}")
    if checkpoint == "auto":
        plan = priced_on(plan, program, cluster)
    return priced_on(recomputing(plan, program, _again(plan, checkpoint, device)), program, cluster)


def _can_be_cut(model: nn.Sequential, program: Program, partitions: int, balance: Balance) -> bool:
    """So often, or where the balance says, without cutting what repeats."""
    starts = _starts(model, program)
    if isinstance(balance, str):
        return len(starts) + 1 >= partitions
    return all(first in starts for first in _firsts(balance))


def _capture(
    model: nn.Sequential,
    batch: Batch,
    loss: Callable[..., Tensor] | None,
    precision: Precision,
    allow: str | Iterable[str],
    fine: bool = False,
) -> Program:
    """With every module's result looked at on its way."""
    wrong: list[PlanError] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, arguments: Any, result: Any) -> None:
            parts = result if isinstance(result, tuple) else (result,)
            if not all(isinstance(part, Tensor) for part in parts):
                kind = next(type(part).__name__ for part in parts if not isinstance(part, Tensor))
                wrong.append(
                    PlanError(
                        f"module {name} ({type(module).__name__}) returns a {kind}",
                        "a tensor, or a tuple of tensors, between the modules of a Sequential",
                        "join it with the module after it in a Sequential of their own",
                    )
                )

        return hook

    inner = [module.register_forward_hook(look(name)) for name, module in list(model.named_children())[:-1]]
    try:
        return capture(model, batch, loss, precision=precision, fine=fine, allow=allow)
    except Exception as error:
        if wrong:
            raise wrong[0] from error
        raise
    finally:
        for handle in inner:
            handle.remove()
        if wrong:
            raise wrong[0]


def _check_counts(**counts: object) -> None:
    for name, given in counts.items():
        if not _is_count(given):
            raise PlanError(f"{name}={given!r}", "a whole number from 1", f"correct it, or use {name}=1")


def _is_count(given: object) -> bool:
    return not isinstance(given, bool) and isinstance(given, Integral) and int(given) >= 1


def _check_sizes(program: Program, microbatches: int, replicas: int) -> None:
    batch = program.batch
    if _is_shared(batch, microbatches, replicas):
        return
    fits = [number for number in range(1, batch + 1) if _is_shared(batch, number, replicas)]
    raise PlanError(
        f"{counted(microbatches, 'micro-batch')} of {counted(batch, 'sample')} on {counted(replicas, 'replica')}",
        "samples for every micro-batch, as many for each replica",
        f"give {nearest(fits, microbatches)} as microbatches" if fits else f"make the batch a multiple of {replicas}",
    )


def _is_shared(batch: int, microbatches: int, replicas: int) -> bool:
    """Whether replicas have equal parts of each micro-batch, the last of which may be smaller."""
    each, last = cut_batch(batch, microbatches)
    return last > 0 and each % replicas == 0 and last % replicas == 0


def _inner(
    program: Program, microbatches: int, replicas: int, optimizer: str, precision: Precision, device: Device
) -> Plan:
    """One partition's plan for all segments: whole on one device, or replicated over a data-parallel axis."""
    if replicas == 1:
        mesh = one_device_mesh(one_device_cluster(device))
        return one_device_plan(program, mesh, Setting(optimizer, precision), microbatches, device.name)
    found = make_plan(
        program,
        load_cluster(f"local:{replicas}"),
        optimizer=optimizer,
        precision=precision,
        pins=(f"dp={replicas}", "zero=0", f"microbatch={microbatches}"),
        fit=False,
        recompute=False,
    )
    mesh = replace(found.mesh, device=device)
    stages = tuple(replace(stage, mesh=mesh) for stage in found.stages)
    return replace(found, stages=stages, pins=(), cluster=f"{replicas} x {device.name}")


def _cuts(
    model: nn.Sequential,
    program: Program,
    partitions: int,
    balance: Balance,
    points: Sequence[FrontierPoint],
    microbatches: int,
) -> tuple[int, ...]:
    starts = _starts(model, program)
    places = sorted(starts.values())
    if isinstance(balance, str):
        if balance == "time":
            weights = [point.forward_s + point.backward_s for point in points]
        else:
            weights = [float(point.static_bytes + microbatches * point.resident_bytes) for point in points]
        return balanced_cuts(weights, partitions, places)
    for first in _firsts(balance):
        if first not in starts:
            where = f"before modules {', '.join(map(str, sorted(starts)))}" if starts else "nowhere: it is one piece"
            raise PlanError(
                f"balance {list(balance)} cuts before module {first}",
                f"cuts where one value that has a gradient is handed on, {where}",
                "move it to one of these" if starts else "use partitions=1",
            )
    return (*(starts[first] for first in _firsts(balance)), len(program.segments))


def _firsts(balance: Sequence[int]) -> list[int]:
    """The module that each partition but the first begins with."""
    return list(accumulate(balance))[:-1]


def _checked(balance: object, partitions: int, modules: int) -> Balance:
    if balance in ("time", "memory"):
        return str(balance)
    given = list(balance) if isinstance(balance, Iterable) and not isinstance(balance, str) else []
    if not given or not all(map(_is_count, given)):
        raise PlanError(
            f"balance {balance!r}",
            "time, memory, or the number of modules in each partition, whole numbers from 1",
            "use balance='time', or count the modules",
        )
    if len(given) != partitions or sum(given) != modules:
        raise PlanError(
            f"balance {given}, which makes {counted(sum(given), 'module')} in {counted(len(given), 'partition')}",
            f"{partitions} numbers of one or more that sum to {modules}, the modules of the Sequential",
            "correct it, or use balance='time'",
        )
    return given


def _starts(model: nn.Sequential, program: Program) -> dict[int, int]:
    """Modules that a segment begins with, by their number: the segment's."""
    names = [name for name, _ in model.named_children()]
    found: dict[int, int] = {}
    for index, segment in enumerate(program.segments):
        head = segment.name.split(".")[0]
        if head in names:
            found.setdefault(names.index(head), index)
    return {module: index for module, index in found.items() if index}


def _again(plan: Plan, checkpoint: str, device: Device) -> list[bool]:
    """Which stages recompute."""
    if checkpoint != "auto":
        return [checkpoint != "never"] * len(plan.stages)
    peaks = [stage.peak_bytes for stage in plan.predicted.stages] or [plan.predicted.peak_bytes]
    return [peak > device.usable_bytes for peak in peaks]
