"""Where `transformers` takes another path because it is being exported, and how it is kept on the one eager takes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any

EXPORTING, COMPILING, TRACING = "is_torchdynamo_exporting", "is_torchdynamo_compiling", "is_tracing"
MASKING = "transformers.masking_utils"
EXPERTS = "transformers.integrations.moe"


@contextmanager
def eager_paths(batch_names: Collection[str]) -> Iterator[None]:
    """While capturing: causal masks stay `is_causal`, keys and values stay grouped, experts stay grouped matmuls.

    Packed sequences can only be told from the position ids that a batch brings along; a batch without them has none.
    """
    loaded = {name: module for name, module in sys.modules.items() if name.startswith("transformers.")}
    with ExitStack() as stack:
        for name, module in loaded.items():
            if EXPORTING in vars(module):
                stack.enter_context(replaced(module, EXPORTING, lambda: False))
                if name.startswith("transformers.models."):
                    stack.enter_context(replaced(module, COMPILING, lambda: False))
        if MASKING in loaded:
            stack.enter_context(_no_mask_is_no_trace(loaded[MASKING]))
        if MASKING in loaded and "position_ids" not in batch_names:
            stack.enter_context(replaced(loaded[MASKING], "find_packed_sequence_indices", lambda _: None))
        if EXPERTS in loaded:
            stack.enter_context(replaced(loaded[EXPERTS], COMPILING, lambda: False))
        yield


def _no_mask_is_no_trace(masking: Any) -> AbstractContextManager[None]:
    """Before 5.20 the question is whether a padding mask is being traced; where there is none, none is."""
    asked: Any = getattr(masking, TRACING, None)

    def tracing(tensor: Any = None) -> bool:
        return tensor is not None and bool(asked(tensor))

    return replaced(masking, TRACING, tracing)


@contextmanager
def stand_ins(made: Mapping[tuple[Any, str], Any], modules: Iterable[ModuleType]) -> Iterator[None]:
    """Replaces attributes, by holder and name, for a while: there, and wherever these modules have imported them."""
    held = {id(vars(holder)[name]): value for (holder, name), value in made.items() if name in vars(holder)}
    with ExitStack() as stack:
        for (holder, name), value in made.items():
            stack.enter_context(replaced(holder, name, value))
        for module in modules:
            for name, value in list(vars(module).items()):
                if id(value) in held:
                    stack.enter_context(replaced(module, name, held[id(value)]))
        yield


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute that is another one for a while. What is not there (another version) is left alone."""
    if name not in vars(holder):
        yield
        return
    before = vars(holder)[name]
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
