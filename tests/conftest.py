from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))  # for `bench`

import captures
import traces
from processes import GlooPool

if captures.FOLDER not in os.environ:  # the first process of the session: those that it starts know of it
    os.environ[captures.FOLDER] = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, os.environ[captures.FOLDER])
captures.share()
traces.share()

# As few threads in processes that tests start as in these: cores are shared by several.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Few kernels are compiled: helpers, headers compiled ahead and vector instructions cost more than they save.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# The same examples on every run, however slow the machine.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


FIRST = (
    "test_select_cycles.py",
    "test_zoo.py",
    "test_hf.py",
    "planner",
    "runtime",
    "rules",
    "generate",
    "cli",
    "capture",
)
"""Files and folders whose tests take longest; before them those that compile kernels, which others then load."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first: the last ones, which one process may be at while the other has none left, are short."""
    places = {name: place for place, name in enumerate(FIRST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: min(places.get(part, len(FIRST)) for part in item.path.relative_to(here).parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported stays: collections, and whoever looks through all objects, pass over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], GlooPool]]:
    """`ranks(n)`: the session's pool of n gloo processes."""
    pools: dict[int, GlooPool] = {}

    def pool(size: int) -> GlooPool:
        if size not in pools:
            pools[size] = GlooPool(size)
        return pools[size]

    yield pool
    for made in pools.values():
        made.close()


@pytest.fixture(scope="module", autouse=True)
def no_world_is_left() -> Iterator[None]:
    """A process group that a file's tests have started goes with them: `mw.fit` starts one of this process alone.
    Whoever looks through all objects passes over what else they leave."""
    yield
    gc.collect()
    gc.freeze()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
