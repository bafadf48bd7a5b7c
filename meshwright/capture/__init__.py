"""Capture: a model and a batch become a Program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from meshwright.capture.batch import Batch, batch_size, check_given, check_tensors, named_batch
from meshwright.capture.build import build, varies
from meshwright.capture.flat import Flat
from meshwright.capture.lock import PLANNING
from meshwright.capture.positions import check_positions
from meshwright.capture.precision import Precision, check_precision
from meshwright.capture.program import Program
from meshwright.capture.reading.read import read
from meshwright.capture.tracing.clock import LATER_S, refused_clock
from meshwright.capture.tracing.export import Exported, export
from meshwright.capture.tracing.questions import check_allow
from meshwright.capture.tracing.repeat import NotAlikeError
from meshwright.capture.tracing.state import Key, name_of, remembered
from meshwright.errors import CaptureError, CaptureWarning
from meshwright.models.form import flat_batch

BAKED = "numbers that the forward made for each sample, outside torch, are the same in every step (a random mask?)"

COMPILED = "the model asks whether it is compiled; only the path that it then takes could be captured, not eager's"


def capture(
    model: nn.Module,
    batch: Batch,
    loss: Callable[..., Tensor] | None = None,
    *,
    precision: Precision | None = None,
    keyed: bool = True,
    fine: bool = False,
    allow: str | Iterable[str] = (),
) -> Program:
    """The Program of one training step of `model` on `batch`. Allocates nothing of the model's size.

    precision: what the step computes in (see `precision`); by default, whatever dtypes model and batch have.
    keyed: random ops draw by key (see `random`), as a planned run does; False leaves them as eager runs them. fine:
    segments end wherever they can, not with what repeats: for pipelines that are cut by hand. allow: lines that ask for
    a tensor's value (`if tensor:`) with their answers, `"file.py:12=False"`; others are refused.
    """
    check_given(model, batch, loss)
    check_precision(model, precision)
    entries = check_allow(allow)
    with PLANNING:
        return _capture(model, batch, loss, precision, keyed, fine, entries)


def rows(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] | None = None) -> int:
    """How many samples a batch has."""
    check_given(model, batch, loss)
    named, _ = flat_batch(named_batch(model, batch, loss))
    check_tensors(named)
    return batch_size(named)


def _capture(
    model: nn.Module,
    batch: Batch,
    loss: Callable[..., Tensor] | None,
    precision: Precision | None,
    keyed: bool,
    fine: bool,
    entries: tuple[str, ...],
) -> Program:
    named, form = flat_batch(named_batch(model, batch, loss))
    check_tensors(named)
    size = batch_size(named)

    def flat(
        *, once: bool, vary: bool = True, state: Mapping[Key, Any] | None = None, later_s: float = 0.0
    ) -> tuple[Flat, Exported]:
        given: dict[str, Any] = {"precision": precision, "allow": entries, "state": state, "later_s": later_s}
        found = export(model, named, loss, form, once=once, vary=vary, **given)
        return read(found.graph, found.model, found.notes, by_key=keyed), found

    try:
        once, vary = True, True
        found, exported = flat(once=once)
    except NotAlikeError:
        once = False
        found, exported = flat(once=once)
    if size == 1 and not varies(found, size):
        vary = False  # one sample is exported as two, right only if the batch varies
        found, exported = flat(once=once, vary=vary)
    if exported.changes.after:
        _check_same_again(found, exported, lambda state: flat(once=once, vary=vary, state=state))
    if exported.clocks and not _same(found, flat(once=once, vary=vary, later_s=LATER_S)[0]):
        raise refused_clock(list(exported.clocks))
    warned: tuple[str, ...] = ()
    if not varies(found, size) and any(type_.shape[:1] == (size,) for type_ in found.made):
        warned += (BAKED,)
    if exported.compiled:
        warned += (COMPILED,)
    for text in warned:
        warnings.warn(text, CaptureWarning, stacklevel=2)
    program = build(found, size, fine=fine)
    unused = _unused_bytes(model, program)
    program = replace(program, warnings=warned, answers=exported.answers, unused_bytes=unused, form=form)
    check_positions(program)
    return program


def _unused_bytes(model: nn.Module, program: Program) -> int:
    """Of parameters that the loss does not depend on."""
    used = {name for parameter in program.parameters for name in (parameter.name, *parameter.aliases)}
    names = dict(model.named_parameters(remove_duplicate=False))
    idle = {id(parameter): parameter for name, parameter in names.items() if name not in used}
    return sum(parameter.numel() * parameter.element_size() for parameter in idle.values())


def _check_same_again(
    first: Flat, exported: Exported, trace: Callable[[Mapping[Key, Any]], tuple[Flat, Exported]]
) -> None:
    """A forward that changed something in Python is traced once more, with what it left: it must give the same, and no
    number may change again, for who knows what the forward does at the hundredth."""
    after = exported.changes.after
    names = [name_of(key) for key in after]
    try:
        second, again = trace(after)
    except CaptureError as error:
        raise remembered(names) from error
    if again.changes.moved:
        raise remembered(list(again.changes.moved))
    if not _same(first, second):
        raise remembered(names)


def _same(first: Flat, second: Flat) -> bool:
    return (first.ops, first.updates, first.loss) == (second.ops, second.updates, second.loss)


__all__ = ["Batch", "Precision", "Program", "capture", "named_batch", "rows"]
