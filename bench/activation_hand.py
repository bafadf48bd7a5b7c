"""A hand-made frontier for a Llama, a rival of `bench/activation_memory.py`.

Every block is compiled by torch.compile with an exact saved set; norm, head and loss run as a fused tail in chunks.

Each forward node of a block's joint graph is tagged as kept or computed again, so that torch's partitioner has nothing
left to decide. `hand 1` keeps what matrix products and attention make; `hand 2` computes gate and up again in every
other layer, `hand 3` in all of them, `hand 4` query, key and value too, `hand 5` everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils.checkpoint import CheckpointPolicy

import meshwright.models.llama as llama

HAND = ("hand 1", "hand 2", "hand 3", "hand 4", "hand 5")
CHUNKS = 8
PRODUCTS = ("query", "key", "value", "out", "gate", "up", "down")
"""A block's matrix products, in the order in which it runs them."""
KEPT: dict[str, tuple[set[str], set[str]]] = {
    "hand 1": (set(PRODUCTS), set(PRODUCTS)),
    "hand 2": ({"query", "key", "value", "out"}, set(PRODUCTS)),
    "hand 3": ({"query", "key", "value", "out"}, {"query", "key", "value", "out"}),
    "hand 4": ({"out"}, {"out"}),
    "hand 5": (set(), set()),
}
"""What even and odd layers keep of them. Attention's results are kept as long as some product's is."""


Backend = Callable[[Callable[[fx.Graph], None]], Any]
"""From what tags a joint graph before it is cut, a compiler for torch.compile."""


class HandMade:
    """The model's forward, loss included."""

    def __init__(self, name: str, model: Any, backend: Backend) -> None:
        self.model = model
        kept = [frozenset(found) for found in KEPT[name]]
        made = {one: _compiled_block(backend(lambda graph, one=one: _tag(graph, one))) for one in kept}  # type: ignore[misc]
        self.blocks = [made[one] for one in kept]
        self.tail = torch.compile(_tail, backend=backend(lambda graph: None))

    def compile(self, tokens: Tensor, targets: Tensor) -> None:
        """Everything once, one after the other, so that little memory is held meanwhile."""
        x = self.model.tokens(tokens).detach().requires_grad_()
        for block in dict.fromkeys(self.blocks):
            block(self.model.layers[0], x, *self._tables(tokens, x))
        part = x.detach().chunk(CHUNKS)[0]
        given = [tensor.detach().requires_grad_() for tensor in (part, self.model.norm.weight, self.model.head.weight)]
        self.tail(*given, targets.chunk(CHUNKS)[0])

    def _tables(self, tokens: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return llama.rotary_tables(tokens.shape[1], self.model.head_dim, self.model.rope_base, x)

    def __call__(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.model.tokens(tokens)
        tables = self._tables(tokens, x)
        for index, layer in enumerate(self.model.layers):
            x = self.blocks[index % 2](layer, x, *tables)
        weights = self.model.norm.weight, self.model.head.weight
        return _FusedTail.apply(self.tail, x, *weights, targets)  # type: ignore[no-any-return, no-untyped-call]


def _compiled_block(backend: Any) -> Callable[..., Tensor]:
    def block(layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return layer(x, cos, sin)  # type: ignore[no-any-return]

    return torch.compile(block, backend=backend)


def _tag(graph: fx.Graph, kept: frozenset[str]) -> None:
    """Views are left alone; a part of an op's results has its op's tag."""
    late: set[fx.Node] = set()
    products = iter(PRODUCTS)
    for node in graph.nodes:
        tangent = node.op == "placeholder" and "tangent" in node.name
        if tangent or any(other in late for other in node.all_input_nodes):
            late.add(node)
        elif node.op == "call_function":
            node.meta["ac_graph_id"] = 1
            save = _is_kept(node, kept, products)
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.MUST_RECOMPUTE


def _is_kept(node: fx.Node, kept: frozenset[str], products: Any) -> bool:
    name = str(node.target)
    if "getitem" in name:
        source = node.args[0]
        return isinstance(source, fx.Node) and source.meta.get("recompute") == CheckpointPolicy.MUST_SAVE
    if name == "aten.mm.default":
        return next(products) in kept
    return "attention" in name and bool(kept)


def _tail(x: Tensor, norm: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(F.rms_norm(x, (x.shape[-1],), norm, 1e-5), head)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / CHUNKS


class _FusedTail(torch.autograd.Function):
    """Forward and backward of one chunk after the other; the gradient of the loss itself is taken to be one."""

    @staticmethod
    def forward(
        ctx: Any, tail: Callable[..., Tensor], x: Tensor, norm: Tensor, head: Tensor, targets: Tensor
    ) -> Tensor:
        of_x, sums, total = torch.empty_like(x), [torch.zeros_like(norm), torch.zeros_like(head)], None
        weights = [norm.detach().requires_grad_(), head.detach().requires_grad_()]
        for part, target, place in zip(x.chunk(CHUNKS), targets.chunk(CHUNKS), of_x.chunk(CHUNKS), strict=True):
            with torch.enable_grad():
                piece = part.detach().requires_grad_()
                loss = tail(piece, *weights, target)
            found = torch.autograd.grad(loss, [piece, *weights])
            place.copy_(found[0])
            for summed, gradient in zip(sums, found[1:], strict=True):
                summed.add_(gradient)
            total = loss.detach() if total is None else total + loss.detach()
        ctx.found = (of_x, *sums)
        assert total is not None
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found, ctx.found = ctx.found, ()
        return None, *found, None
