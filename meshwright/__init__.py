"""meshwright: finds the fastest training plan that fits, explains it, and runs it on torch.distributed."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshwright import methods

if TYPE_CHECKING:
    from meshwright.api import plan, profile
    from meshwright.caches import clear_caches
    from meshwright.capture import capture
    from meshwright.capture.program import Program
    from meshwright.cluster import Cluster, Mesh, load_cluster
    from meshwright.configuration.price import price
    from meshwright.errors import MeshwrightError
    from meshwright.layout import Layout
    from meshwright.plan.plan import Plan
    from meshwright.report.compared import compare
    from meshwright.rules import register_rule
    from meshwright.runtime.fit import fit
    from meshwright.runtime.gpipe import gpipe
    from meshwright.runtime.state.checkpoint import load, save
    from meshwright.runtime.state.export import export
    from meshwright.runtime.state.loader import loader
    from meshwright.runtime.trainer import Trainer, parallelize

_HOMES = {
    "Cluster": "meshwright.cluster",
    "Constraints": "meshwright.pins.constraints",
    "Layout": "meshwright.layout",
    "Mesh": "meshwright.cluster",
    "MeshwrightError": "meshwright.errors",
    "Plan": "meshwright.plan.plan",
    "Program": "meshwright.capture.program",
    "Trainer": "meshwright.runtime.trainer",
    "capture": "meshwright.capture",
    "clear_caches": "meshwright.caches",
    "fit": "meshwright.runtime.fit",
    "compare": "meshwright.report.compared",
    "export": "meshwright.runtime.state.export",
    "gpipe": "meshwright.runtime.gpipe",
    "load": "meshwright.runtime.state.checkpoint",
    "load_cluster": "meshwright.cluster",
    "loader": "meshwright.runtime.state.loader",
    "parallelize": "meshwright.runtime.trainer",
    "plan": "meshwright.api",
    "price": "meshwright.configuration.price",
    "profile": "meshwright.api",
    "register_rule": "meshwright.rules",
    "save": "meshwright.runtime.state.checkpoint",
}
"""Names are imported when first used: `import meshwright` and `meshwright --help` need no torch."""

__version__ = "0.1.0"

logging.getLogger("meshwright").addHandler(logging.NullHandler())  # quiet unless the user asks
if _level := os.environ.get("MESHWRIGHT_LOG"):  # ranks that a launcher starts have no lines of the user's
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("meshwright").setLevel(logging.getLevelNamesMapping().get(_level.upper(), logging.INFO))

methods.HOMES.update(
    {
        "Plan.__str__": "meshwright.explain.describe:describe",
        "Plan.__repr__": "meshwright.explain.recommend:brief",
        "Plan._repr_html_": "meshwright.report.notebook:small",
        "Plan.report": "meshwright.report.page:report",
        "Plan.explain": "meshwright.explain.explain:explain",
        "Plan.diff": "meshwright.explain.diff:diff",
        "Plan.price": "meshwright.planner.reprice:reprice",
        "Timeline.trace": "meshwright.simulate.trace:write_trace",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


class _Facade(ModuleType):
    """`plan` and `capture` are functions here and packages inside: importing a package must not hide the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "Cluster",
    "Constraints",
    "Layout",
    "Mesh",
    "MeshwrightError",
    "Plan",
    "Program",
    "Trainer",
    "capture",
    "clear_caches",
    "compare",
    "export",
    "fit",
    "gpipe",
    "load",
    "load_cluster",
    "loader",
    "parallelize",
    "plan",
    "price",
    "profile",
    "register_rule",
    "save",
]
