"""What a traced graph communicates, node by node."""

from __future__ import annotations

from torch import Tensor, fx

from meshwright.generate.split import Halves
from meshwright.layout import Collective

KINDS = {
    "all_reduce": "all_reduce",
    "all_reduce_max": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "exchange_rows": "all_to_all",
    "ring_shift": "send",
}
"""Of each op of the namespace `meshwright`, what it is on the wire."""


def collective_of(node: fx.Node) -> Collective | None:
    """None where the node does not communicate."""
    space, _, rest = str(node.target).partition(".")
    kind = KINDS.get(rest.partition(".")[0]) if node.op == "call_function" and space == "meshwright" else None
    if kind is None:
        return None
    axis = next(argument for argument in node.args if isinstance(argument, str))
    counted: Tensor = node.meta["val"] if kind == "all_gather" else node.all_input_nodes[0].meta["val"]
    count = counted.numel()
    if rest.startswith("exchange_rows"):  # a rank sends or gets back all of its own rows
        rows = node.args[2]
        assert isinstance(rows, int)
        count = rows * counted.shape[1:].numel()
    return Collective(kind, axis, count * counted.element_size())


def collectives_in(module: fx.GraphModule) -> list[Collective]:
    return [found for node in module.graph.nodes if (found := collective_of(node)) is not None]


def replayed(halves: Halves) -> list[Collective]:
    """Those of forward that backward runs once more."""
    before = {node.name for node in halves.first.graph.nodes if node.op == "call_function"}
    again = [node for node in halves.second.graph.nodes if node.name in before]
    return [found for node in again if (found := collective_of(node)) is not None]
