"""Plan files of an older schema as the present one has them."""

from __future__ import annotations

from typing import Any

from meshwright.errors import PlanError

OLDEST = 2
"""The first schema that is read."""

_PARAMETER = {"regather": "reshard_after_forward", "scatter": "reduce_scatter_every_microbatch"}
_STAGE = {"guests": "tied_replicas"}
_PLAN = {"wires": "links", "relayed": "routed_via_stages"}


def upgraded(plain: dict[str, Any]) -> dict[str, Any]:
    """A plan of schema 2 with the names of schema 3. Of a searched schedule it lacks the tasks."""
    if plain.get("schema") != OLDEST:
        raise PlanError(f"schema {plain.get('schema')!r}", f"{OLDEST}, which is read", "plan again")
    found: dict[str, Any] = _renamed(plain, _PLAN) | {"schema": 3}
    if isinstance(found.get("predicted"), dict):
        found["predicted"] = {name: value for name, value in found["predicted"].items() if name != "late_gradients"}
    if isinstance(found.get("stages"), list):
        found["stages"] = [_renamed(stage, _STAGE) for stage in found["stages"]]
    if isinstance(found.get("parameters"), dict):
        found["parameters"] = {name: _renamed(entry, _PARAMETER) for name, entry in found["parameters"].items()}
    return found


def _renamed(given: Any, names: dict[str, str]) -> Any:
    return {names.get(name, name): value for name, value in given.items()} if isinstance(given, dict) else given
