"""`jit`: numba's compiler when numba is there, the identity when not. Compiled code is kept on disk between runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

try:
    if os.environ.get("MESHWRIGHT_NUMBA", "1") == "0":
        raise ImportError("numba is switched off")
    import numba

    HAVE_NUMBA = True
except ImportError:
    HAVE_NUMBA = False


def jit(function: F) -> F:
    """Kernels hold no Python object and release the interpreter lock, so two of them can run on two cores."""
    if not HAVE_NUMBA:
        return function
    compiled: Any = numba.njit(cache=True, nogil=True, fastmath=False)(function)
    return cast(F, compiled)
