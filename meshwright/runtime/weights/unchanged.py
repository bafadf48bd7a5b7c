"""What a plan was captured with and a user may change afterwards: modes, members and attributes of modules.

A step runs the captured Program. `model.eval()`, a layer that is replaced or `dropout.p = 0.2` would change nothing and
say nothing: they are noticed before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from warnings import warn

from torch import nn

from meshwright.errors import CaptureWarning, RunError
from meshwright.runtime.weights.contents import Contents
from meshwright.torch_compat import global_hooks, module_hooks

_PLAIN = (bool, int, float, str)


class Unchanged:
    """Looks at every module before every step: one comparison of tuples each, for identical objects no more."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None = None) -> None:
        """again: whether another capture gives the same Program; asked where something inside an object has changed."""
        self.again: Callable[[], bool] = lambda: False
        self.contents, self._asked = Contents(model, loss), False
        self._named = list(model.named_modules())
        self._held: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        self._members: list[tuple[nn.Module | None, ...]] = []
        self._hooks: list[tuple[Any, ...]] = []
        self._global_hooks = global_hooks()
        self.note()

    @contextmanager
    def during_forward(self) -> Iterator[None]:
        """What the model's own forward changes is expected from then on; what was changed before is not."""
        before = [dict(vars(module)) for _, module in self._named]
        with self.contents.expected_inside():
            yield
        for (_, module), (held, _), old in zip(self._named, self._held, before, strict=True):
            held.update({key: new for key, new in vars(module).items() if key in held and old.get(key) is not new})
        self._held = [(held, tuple(held.values())) for held, _ in self._held]

    def note(self) -> None:
        """From now on, what is there now is expected."""
        self._held = [(dict(vars(module)), tuple(vars(module).values())) for _, module in self._named]
        self._members = [tuple(module._modules.values()) for _, module in self._named]
        self._hooks = [module_hooks(module) for _, module in self._named]

    def check(self) -> None:
        noticed, replaced = False, ""
        if global_hooks() != self._global_hooks:
            raise _changed(
                "hooks of all modules (torch.nn.modules.module.register_module_...) were registered or removed since "
                "mw.parallelize",
                "register them first, then plan; or remove them before trainer.step",
            )
        for (name, module), hooks in zip(self._named, self._hooks, strict=True):
            if module_hooks(module) != hooks:
                raise _changed(
                    f"hooks of {_module(name)} were registered or removed since mw.parallelize, and a step runs those "
                    "that were there when it was planned",
                    "register them first, then plan; or remove them before trainer.step: trainer(batch) and model(...) "
                    "under torch.no_grad() run them",
                )
        for (name, module), (held, values), members in zip(self._named, self._held, self._members, strict=True):
            if tuple(module._modules.values()) != members:
                raise _changed(
                    f"the members of {_module(name)} were replaced since mw.parallelize",
                    "make the change first, then plan and call mw.parallelize",
                )
            if not _alike(tuple(vars(module).values()), values):
                replaced = self._look(name, module, held) or replaced
                noticed = True
        if replaced:
            self._judge(replaced)
        if noticed:
            self.note()
        if changed := self.contents.changed():
            self._judge(changed[0])

    def _judge(self, changed: str) -> None:
        """A change inside an object: refused where it changes what a step computes."""
        start_s = perf_counter()
        if not self.again():
            raise _changed(
                f"{changed} was changed since mw.parallelize, which changes what its forward computes",
                "plan again after the change; what changes from step to step is an entry of the batch or a buffer",
            )
        if self._asked:
            warn(
                f"{changed} changes between steps. Each time the model is captured again "
                f"({perf_counter() - start_s:.1f} s) to see that it computes the same: keep what the loop "
                "changes out of what the forward reads",
                CaptureWarning,
                stacklevel=4,
            )
        self._asked = True
        self.contents.note()

    def _look(self, name: str, module: nn.Module, held: dict[str, Any]) -> str:
        """Refuses a plain value that is another one. A function that is, a method above all, is for `_judge`: its name.
        Other objects that were replaced are not examined."""
        replaced = ""
        for key in held | vars(module):
            before, now = held.get(key), vars(module).get(key)
            if now is not before and (callable(before) or callable(now)) and _was_called(module, key, held):
                replaced = f"{key!r} of {_module(name)}"
            if now is before or not (isinstance(before, _PLAIN) and isinstance(now, _PLAIN)) or now == before:
                continue
            if key == "training":
                called, wanted = ("model.train()", "eval") if now else ("model.eval()", "train")
                raise _changed(
                    f"{_module(name)} is in {'train' if now else 'eval'} mode, but was planned in {wanted} mode",
                    f"call model.{wanted}() before trainer.step, or plan after {called}; trainer(batch), "
                    "trainer.predict and trainer.evaluate are in eval mode by themselves",
                )
            raise _changed(
                f"{key!r} of {_module(name)} was {before!r} when it was planned and is {now!r}",
                "plan again after the change; what changes from step to step is an entry of the batch or a buffer",
            )
        return replaced


def _was_called(module: nn.Module, key: str, held: dict[str, Any]) -> bool:
    """Whether a forward may have called what is now another function: an attribute, or a method of the class."""
    return key in held or callable(getattr(type(module), key, None))


def _alike(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    try:
        return now == before
    except Exception:  # of objects that cannot be compared, such as tensors
        return False


def _module(name: str) -> str:
    return f"module {name!r}" if name else "the model"


def _changed(given: str, todo: str) -> RunError:
    return RunError(given, "a model that computes what was planned", todo)
