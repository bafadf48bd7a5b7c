"""Whole weights in an adopted model: all of them for a while, or those of one layer while its forward runs.

A *unit* is a member of the model's outermost lists (a layer); parameters that belong to none, or to several, are the
root's. A forward holds the root's parameters and those of one unit at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import update_wrapper
from types import MethodType
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.plan import Plan
from meshwright.runtime.weights.adoption import Adopted, NotPickled, updated
from meshwright.runtime.weights.hosted import on_device
from meshwright.runtime.weights.regions import whole
from meshwright.runtime.weights.unchanged import Unchanged
from meshwright.torch_compat import writes_seen


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """No gradients, inside `torch.inference_mode` too, under which the model's own tensors cannot be handed on."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Gathering:
    """Puts whole parameters in an adopted model's places and takes them away again. Every rank calls alike."""

    def __init__(self, adopted: Adopted, plan: Plan, program: Program, device: torch.device, model: nn.Module) -> None:
        """model: the user's, all of what was adopted or a part of it."""
        self.adopted, self.plan, self.program, self.device, self.model = adopted, plan, program, device, model
        self.open = self.inside_forward = False
        self.unchanged: Unchanged | None = None
        self._types = {p.name: (p.type.sizes, getattr(torch, p.type.dtype)) for p in program.parameters}
        self._units = _units(adopted)
        self.buffer_homes: dict[str, int] = {}
        self.own_buffers: set[str] = set()
        for stage in plan.stages if len(plan.stages) > 1 else ():
            changed = {name for index in stage.segments for name in updated(program, program.segments[index])}
            self.buffer_homes.update(dict.fromkeys(sorted(changed), stage.mesh.ranks[0]))
            if dist.get_rank() in stage.mesh.ranks:
                self.own_buffers |= changed

    def _share_buffers(self) -> None:
        """Buffers that a stage's steps change are as they are there on every rank."""
        for name, first in self.buffer_homes.items():
            held = self.adopted.buffers[name][2]
            told = held.contiguous()
            dist.broadcast(told, first)
            if told is not held:
                held.copy_(told)

    def full_state(self, saved: Collection[str]) -> dict[str, Tensor]:
        """Whole, in the host's memory, under every name; one parameter at a time is whole on the device. saved: names
        that the model's `state_dict` has."""
        found: dict[str, Tensor] = {}
        with self._entered(), ordinary_tensors():
            self._share_buffers()
            for name, every in self.adopted.names.items():
                tensor = self.whole(name, self._stored_dtype(name))
                found.update(dict.fromkeys(every, tensor.detach().cpu().clone()))
            before = self.adopted.precise_buffers()
            for name, (module, leaf, _) in self.adopted.buffers.items():
                value = module._buffers[leaf]
                if name in saved and value is not None:
                    found[name] = value.detach().cpu().clone()
            self.adopted.put_buffers(before)
        return found

    def _stored_dtype(self, name: str) -> torch.dtype:
        planned = self.plan.parameters.get(name)
        found: torch.dtype = self.adopted.stored[name].dtype if planned is None else getattr(torch, planned.dtype)
        return found

    def whole(self, name: str, dtype: torch.dtype) -> Tensor:
        """On every rank, in memory of its own where it is stored in pieces; a rank of its stage tells the others."""
        stored = self.adopted.stored.get(name)
        found = None if stored is None else whole(self._piece(stored.detach()).to(dtype))
        if found is not None and (len(self.plan.stages) == 1 or name not in self._types):
            return found
        first = self.plan.home(self.program, name).mesh.ranks[0]
        if found is None:
            found = torch.empty(self._types[name][0], dtype=dtype, device=self.device)
        found = found.contiguous()
        dist.broadcast(found, first)
        return found

    def _piece(self, stored: Tensor) -> Tensor:
        return on_device(stored, self.device) if isinstance(stored, DTensor) else stored

    def put(self, names: Sequence[str], dtype: Callable[[str], torch.dtype]) -> dict[str, nn.Parameter]:
        with ordinary_tensors():
            found = {name: nn.Parameter(self.whole(name, dtype(name)), requires_grad=False) for name in names}
        for name, parameter in found.items():
            self.adopted.put(name, parameter)
        return found

    @contextmanager
    def everything(self) -> Iterator[nn.Module]:
        """All parameters whole, in the dtype that is stored, and buffers as the model came with them. What is changed
        inside is taken over: change it alike on every rank."""
        inside = ExitStack()
        with self._entered(), ordinary_tensors():
            if self.unchanged is not None:
                inside.enter_context(self.unchanged.contents.expected_inside())  # `generate` sets up its configuration
            self._share_buffers()
            found = self.put(list(self.adopted.places), self._stored_dtype)
            counts = {name: writes_seen(parameter) for name, parameter in found.items()}
            buffers = self.adopted.precise_buffers()
        try:
            self.open = True
            yield self.model
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise RunError(
                "backward inside trainer.gathered(), whose weights are copies without gradients",
                "outputs, and changes of weights under torch.no_grad()",
                "leave the `with` and call trainer.step(batch), which runs forward and backward",
            ) from error
        finally:
            self.open = False
            with ordinary_tensors():
                for name, parameter in found.items():
                    if name in self.adopted.stored and writes_seen(parameter) != counts[name]:
                        self.adopted.stored[name].copy_(self.adopted.cuts[name].piece(parameter))
            self.adopted.put_stored()
            self.adopted.put_buffers(buffers)
            inside.close()
            if dist.get_world_size() > 1:
                dist.barrier()

    @contextmanager
    def by_layer(self) -> Iterator[None]:
        """Around one call of the model's own forward."""
        handles: list[Any] = []
        with self._entered(), torch.no_grad():
            try:
                self.inside_forward = True
                self._share_buffers()
                self.put(self._units.get(None, ()), self._compute)
                for unit, names in self._units.items():
                    if unit is not None:
                        handles.append(unit.register_forward_pre_hook(self._before(names)))
                        handles.append(unit.register_forward_hook(self._after(names), always_call=True))
                yield
            finally:
                self.inside_forward = False
                for handle in handles:
                    handle.remove()
                self.adopted.put_stored()

    def _compute(self, name: str) -> torch.dtype:
        """That of the step; an idle parameter has its own."""
        found: torch.dtype = self._types[name][1] if name in self._types else self.adopted.stored[name].dtype
        return found

    def _before(self, names: Sequence[str]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self.put(names, self._compute)

        return hook

    def _after(self, names: Sequence[str]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Any) -> None:
            for name in names:
                self.adopted.put_own(name)

        return hook

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self.open:
            raise RunError("weights are gathered already", "one `with trainer.gathered()` at a time", "leave it first")
        yield


def _units(adopted: Adopted) -> dict[nn.Module | None, list[str]]:
    """Names of parameters by the unit that holds all places of theirs; None: the root."""
    of_module: dict[nn.Module, set[nn.Module]] = {}
    for unit in _layers(adopted.model):
        for module in unit.modules():
            of_module.setdefault(module, set()).add(unit)
    found: dict[nn.Module | None, list[str]] = {}
    for name, places in adopted.places.items():
        every = [of_module.get(module, set()) for module, _ in places]
        shared = set.intersection(*every) if every else set()
        alone = len(shared) == 1 and all(len(units) == 1 for units in every)
        found.setdefault(next(iter(shared)) if alone else None, []).append(name)
    return found


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Members of the outermost lists of modules, whose places may be empty."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        yield from module.children()
    else:
        for child in module.children():
            yield from _layers(child)


class Forward(NotPickled):
    """Stands in an adopted model for its forward: outputs without gradients, from weights gathered layer by layer.

    A copy of the model has its own forward again (`CopiedForward`). own: that of the model.
    """

    def __init__(self, model: nn.Module, gathering: Gathering, cast: Callable[[Any], Any]) -> None:
        found: Any = model.forward
        self.own: Callable[..., Any] = found.own if isinstance(found, Forward) else found
        self._gathering, self.cast = ref(gathering), cast
        self._model_id = id(model)
        update_wrapper(self, self.own)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        function = getattr(self.own, "__func__", None)
        copied = memo.get(self._model_id)
        return self.own if function is None or copied is None else CopiedForward(MethodType(function, copied))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gathering = self._gathering()
        if gathering is None:
            raise RunError(
                "the forward of a model whose trainer is gone", "the trainer that adopted it", "keep the trainer"
            )
        with gathering.unchanged.during_forward() if gathering.unchanged else nullcontext():
            return self._outputs(gathering, args, kwargs)

    def _outputs(self, gathering: Gathering, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if gathering.open:
            return self.own(*args, **kwargs)
        if torch.is_grad_enabled():
            raise RunError(
                "the forward of a model that mw.parallelize has adopted, with gradients enabled",
                "trainer.step(batch), which runs forward and backward under the plan",
                "call trainer.step to train; for outputs call trainer(batch), or the model under torch.no_grad()",
            )
        try:
            with gathering.by_layer():
                return self.own(*self.cast(args), **self.cast(kwargs))
        except RuntimeError as error:
            if "DTensor" not in str(error):
                raise
            raise RunError(
                "a layer's weights are read outside of the layer's own forward",
                "layers that only they themselves read",
                "use `with trainer.gathered() as model:`",
            ) from error


class CopiedForward(NotPickled):
    """The forward of a copy of an adopted model (an average of weights): on its own weights, whole while it runs."""

    def __init__(self, own: MethodType) -> None:
        self.own = own
        update_wrapper(self, own)

    @property
    def __self__(self) -> Any:
        """As of a method."""
        return self.own.__self__

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        copied = memo.get(id(self.own.__self__))
        return self if copied is None else CopiedForward(MethodType(self.own.__func__, copied))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model: Any = self.own.__self__
        held = [
            (module, leaf, parameter)
            for module in model.modules()
            for leaf, parameter in module._parameters.items()
            if isinstance(parameter, DTensor)
        ]
        if held and torch.is_grad_enabled():
            raise RunError(
                "the forward of a copy of a model that mw.parallelize has adopted, with gradients enabled",
                "outputs of a copy, without gradients",
                "call it under torch.no_grad(); a copy is trained by a trainer of its own (mw.parallelize)",
            )
        wholes: dict[int, nn.Parameter] = {}
        try:
            for module, leaf, parameter in held:
                if id(parameter) not in wholes:
                    with ordinary_tensors():
                        wholes[id(parameter)] = nn.Parameter(whole(parameter.detach()), requires_grad=False)
                module._parameters[leaf] = wholes[id(parameter)]
            return self.own(*args, **kwargs)
        finally:
            for module, leaf, parameter in held:
                module._parameters[leaf] = parameter


class OnlyWhole(NotPickled):
    """Stands in an adopted model for a method that writes its weights: they have to be whole."""

    def __init__(self, model: nn.Module, name: str, gathering: Gathering) -> None:
        found: Any = getattr(model, name)
        self.own: Any = found.own if isinstance(found, OnlyWhole) else found
        self._gathering, self._model_id, self.name = ref(gathering), id(model), name

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        copied = memo.get(self._model_id)
        return self.own if copied is None else MethodType(self.own.__func__, copied)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gathering = self._gathering()
        if gathering is not None and not gathering.open:
            raise RunError(
                f"model.{self.name} of a model that mw.parallelize has adopted, whose weights lie in pieces",
                "whole weights",
                f"with trainer.gathered() as model: model.{self.name}(...), on every rank or on one of them",
            )
        return self.own(*args, **kwargs)
