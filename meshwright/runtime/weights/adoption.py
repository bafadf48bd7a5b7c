"""A model that a trainer has adopted: its parameters are the stored DTensors, its buffers those that the step reads.

A Parameter object cannot become a DTensor, so the places in the modules that hold it are given the stored one, as
`fully_shard` does. Optimizers that were made over the old objects are handed the stored ones (`optimizers`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.capture.program import Program, Segment
from meshwright.errors import RunError
from meshwright.layout import Layout
from meshwright.runtime.weights.regions import region
from meshwright.torch_compat import dtensor_like, gradient_hooks, local_tensor, storage_key

Place = tuple[nn.Module, str]


@dataclass(frozen=True, slots=True)
class Cut:
    """Which piece of a parameter this rank stores: its layout, the mesh's sizes and this rank's coordinates."""

    storage: Layout
    sizes: tuple[int, ...]
    at: tuple[int, ...]
    like: DTensor

    def piece(self, tensor: Tensor) -> DTensor:
        """This rank's piece of a whole tensor of the parameter's shape, in memory of its own."""
        where = region(self.storage, tuple(tensor.shape), self.sizes, self.at)
        own = local_tensor(self.like)
        local = tensor.detach()[where].to(own.device, own.dtype, copy=True).contiguous()
        found: DTensor = dtensor_like(local, self.like)
        return found


def places_of(model: nn.Module) -> dict[int, list[Place]]:
    """Where modules hold each parameter, by the object's id; a tied one is held in several places."""
    found: dict[int, list[Place]] = {}
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append((module, leaf))
    return found


def lies_in_pieces(module: nn.Module) -> bool:
    """Whether parameters of an adopted module, or of a copy of it, are DTensors or on other stages."""
    return any(
        isinstance(parameter, DTensor) or (parameter is None and leaf in vars(one))
        for one in module.modules()
        for leaf, parameter in one._parameters.items()
    )


def check_no_gradients(model: nn.Module) -> None:
    """Refuses gradients that an optimizer has still to take: a trainer begins without any."""
    given = {name: parameter.grad for name, parameter in model.named_parameters() if not parameter.is_meta}
    found = [name for name, gradient in given.items() if gradient is not None and bool(gradient.any())]
    if found:
        more = f" and {len(found) - 1} more have gradients" if found[1:] else " has a gradient"
        raise RunError(
            f"parameter {found[0]!r}{more}, which a trainer would not add to its own",
            "a model without gradients",
            "let the optimizer take its step, or call model.zero_grad(), before mw.parallelize; copy=True leaves them",
        )


def skeleton(model: nn.Module) -> nn.Module:
    """A copy of the model whose parameters are on the meta device; buffers are copied."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        blank = torch.empty_like(parameter, device="meta", requires_grad=False)
        memo[id(parameter)] = nn.Parameter(blank, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)


class Adopted:
    """What a model's places hold. stored: this rank's parameters by name, idle ones too; elsewhere: those of other
    stages, which are meta tensors and no parameters of the model; buffers: by name, with the objects that the model
    keeps."""

    def __init__(
        self, model: nn.Module, program: Program, stored: Mapping[str, nn.Parameter], cuts: Mapping[str, Cut]
    ) -> None:
        self.model, self.cuts, self.stored = model, cuts, dict(stored)
        named, held = dict(model.named_parameters(remove_duplicate=False)), places_of(model)
        self.names = {parameter.name: (parameter.name, *parameter.aliases) for parameter in program.parameters}
        self.names |= idle_names(model, program)
        olds = {name: named[name] for name in self.names}
        self.places = {name: held[id(old)] for name, old in olds.items()}
        self.elsewhere = {
            parameter.name: torch.empty(parameter.type.sizes, dtype=olds[parameter.name].dtype, device="meta")
            for parameter in program.parameters
            if parameter.name not in stored
        }
        self.buffers: dict[str, tuple[nn.Module, str, Tensor]] = {}
        self.precise: dict[str, Tensor] = {}
        self._made = {name for segment in program.segments for name in updated(program, segment)}
        self._starts = {name: local_tensor(parameter).data_ptr() for name, parameter in stored.items()}
        self._given = {name: storage_key(parameter) for name, parameter in stored.items()}
        for old in olds.values():
            forget(old)
        self.put_stored()

    def put_stored(self) -> None:
        """Every place holds what this rank stores."""
        for name in self.places:
            self.put_own(name)

    def put_own(self, name: str) -> None:
        if name in self.stored:
            self.put(name, self.stored[name])
            return
        for module, leaf in self.places[name]:
            module._parameters[leaf] = None
            module.__dict__[leaf] = self.elsewhere[name]

    def put(self, name: str, parameter: nn.Parameter) -> None:
        for module, leaf in self.places[name]:
            setattr(module, leaf, parameter)

    def keep_buffers(self, buffers: dict[str, Tensor]) -> None:
        """The model's buffers and the step's are the same objects from now on."""
        modules = dict(self.model.named_modules())
        for name, tensor in buffers.items():
            path, _, leaf = name.rpartition(".")
            module = modules[path]
            old = module._buffers[leaf]
            assert old is not None
            if old.dtype != tensor.dtype and not old.is_meta:
                self.precise[name] = old.detach().cpu()
            if old.is_meta or isinstance(old, DTensor):
                _replace_buffer(self.model, old, tensor)
            elif old is not tensor:
                old.data = tensor
                buffers[name] = old
            self.buffers[name] = (module, leaf, buffers[name])

    def take_buffers(self, buffers: dict[str, Tensor]) -> None:
        """What a step made of buffers becomes the content of the model's objects."""
        for name, (_, _, held) in self.buffers.items():
            made = buffers[name]
            if made is not held:
                held.data = made
                buffers[name] = held

    def precise_buffers(self) -> dict[str, Tensor]:
        """Buffers that the step has in another dtype get the one they came in, and the value where no step changes it;
        those that were there are returned."""
        before = {}
        for name, own in self.precise.items():
            module, leaf, held = self.buffers[name]
            before[name] = held
            value = held if name in self._made else own
            module._buffers[leaf] = value.to(held.device, own.dtype)
        return before

    def put_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        for name, tensor in buffers.items():
            module, leaf, _ = self.buffers[name]
            module._buffers[leaf] = tensor

    def check(self) -> None:
        """Refuses parameters that somebody has replaced; a buffer that was is taken over."""
        for name, places in self.places.items():
            stored = self.stored.get(name)
            if stored is None:
                continue
            module, leaf = places[0]
            kept = module._parameters.get(leaf) is stored
            if not kept or local_tensor(stored).data_ptr() != self._starts[name]:
                raise RunError(
                    f"{name} of the model is another tensor than the one that the trainer stores",
                    "parameters that stay where mw.parallelize put them",
                    "change values in place (load_state_dict without assign=True), cast and move the model before; "
                    "where two models share a module (a GAN's discriminator) pass copy=True for the second, and after "
                    "each step of the first call second.model.load_state_dict(first.full_state_dict(), strict=False)",
                )
            if storage_key(stored) != self._given[name]:
                raise RunError(
                    f"{name}.data was set to another tensor (by `vector_to_parameters`, say), which a DTensor ignores",
                    "values that are changed in place",
                    "write parameter.data.copy_(tensor), or parameter.copy_(tensor) under torch.no_grad()",
                )
            if gradient_hooks(stored):
                raise RunError(
                    f"a hook on the gradient of {name}, which trainer.step does not call",
                    "gradients that are changed between trainer.step and optimizer.step",
                    "do there what the hook does (parameter.grad.mul_(...)), and remove it",
                )
        for name, (module, leaf, held) in self.buffers.items():
            given = module._buffers.get(leaf)
            if given is not held:
                self._take(name, given, held)
                module._buffers[leaf] = held

    def _take(self, name: str, given: Tensor | None, held: Tensor) -> None:
        if given is None or given.shape != held.shape:
            kind = "None" if given is None else f"of shape {tuple(given.shape)}"
            raise RunError(f"buffer {name} was set to one {kind}", f"{tuple(held.shape)}, as planned", "plan again")
        held.data = given.detach().to(held.device, held.dtype, copy=True)


def idle_names(model: nn.Module, program: Program) -> dict[str, tuple[str, ...]]:
    """Parameters that the loss does not depend on: the first name of each, with all that it has."""
    used = {name for parameter in program.parameters for name in (parameter.name, *parameter.aliases)}
    found: dict[int, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in used:
            found[id(parameter)] = (*found.get(id(parameter), ()), name)
    return {names[0]: names for names in found.values()}


def updated(program: Program, segment: Segment) -> Iterator[str]:
    """Buffers that a segment changes."""
    graph = program.graph(segment)
    local = dict(zip((value.name for value in graph.buffers), segment.buffers, strict=True))
    return (local[name] for name, _ in graph.updates)


def _replace_buffer(model: nn.Module, old: Tensor, new: Tensor) -> None:
    for module in model.modules():
        for leaf, tensor in module._buffers.items():
            if tensor is old:
                module._buffers[leaf] = new


def forget(old: Tensor) -> None:
    """Frees the memory of a Parameter object that nobody should use any more."""
    if not old.is_meta and not isinstance(old, DTensor):
        old.grad = None
        old.data = old.data.new_empty(0)


class NotPickled:
    """Base of what stands in an adopted model: neither is to be pickled."""

    def __reduce__(self) -> Any:
        raise RunError(
            "an adopted model is pickled (torch.save(model), or sent to another process)",
            "its weights: a state_dict, or a checkpoint",
            "torch.save what trainer.full_state_dict() gives, or call mw.save or mw.export",
        )


class SharedByCopies(NotPickled):
    """Copies of the model have the same."""

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        return self
