"""The segments of a transformer under a configuration: embedding, layers, head, each a Block on local shapes."""

from __future__ import annotations

from meshwright.capture.program import ITEM_BYTES, Value
from meshwright.cluster.expert_loads import busiest_rank
from meshwright.configuration.block import Block
from meshwright.configuration.configuration import Configuration
from meshwright.configuration.transformer import Transformer

NARROW = ("aten.linear.default", "aten._grouped_mm.default")
"""What float8 is used for."""


class Layers:
    """Makes the Blocks of one model under one configuration."""

    def __init__(self, model: Transformer, given: Configuration) -> None:
        self.model, self.given = model, given
        self.length = model.seq // given.cp
        self.tokens = given.micro_batch * self.length
        self.split = given.sp and given.tp > 1
        self.rows = self.tokens // given.tp if self.split else self.tokens
        self.size = ITEM_BYTES[given.dtype]

    @property
    def stream_bytes(self) -> int:
        """Of the hidden states between two layers, on one rank."""
        return self.rows * self.model.hidden * self.size

    def embedding(self) -> Block:
        model, block = self.model, Block(self.given.dtype)
        indices = block.value(self.tokens, dtype="int64", grad=False)
        table = block.weight(self._share(model.vocab), model.hidden)
        x = block.call("aten.embedding.default", (table, indices), self.tokens, model.hidden)
        self._reduce(block, x)
        if not model.rms:
            positions = block.weight(model.seq, model.hidden)
            found = block.call("aten.embedding.default", (positions, indices), self.rows, model.hidden)
            x = block.pointwise("add.Tensor", block.value(self.rows, model.hidden), found)
        if model.dropout:
            block.dropout(block.value(self.rows, model.hidden))
        return block

    def head(self) -> Block:
        """Final norm and logits; of one stage, a tied table's weights count with the embedding."""
        model, block = self.model, Block(self.given.dtype)
        x = self._gathered(block, block.norm(block.value(self.rows, model.hidden), model.rms))
        block.linear(x, self._share(model.vocab))
        if self.given.tp > 1:
            self._backward_reduce(block, x)
        if model.tied and self.given.pp == 1:
            block.weights.popitem()
        return block

    def loss(self) -> Block:
        """Of the logits, in float32 unless the configuration says otherwise. By steps, the largest is taken off,
        exponentials are made and divided by their sum, one after the other. PyTorch's eager loss has the logarithms
        kept, a gradient of zeros but for the targets and the result at once; over ranks the exponentials too."""
        block = Block(self.given.dtype)
        logits = block.value(self.tokens, self._share(self.model.vocab))
        for _ in range(3 if self.given.tp > 1 else 0):  # largest, sum and target of each row
            block.moves("tp", "all_reduce", 4 * self.tokens)
        wide = block.cast(logits, "float32") if self.given.loss != "half" else logits
        for _ in range(3 if self.given.loss == "steps" else 0):
            step = block.value(*wide.type.sizes, dtype=wide.type.dtype, grad=False)
            block.kept[block.pointwise("neg.default", step).name] = 0
        if self.given.loss == "eager":
            parts = [block.value(*wide.type.sizes, dtype="float32", grad=False) for _ in range(1 + (self.given.tp > 1))]
            name = "aten.neg.default" if len(parts) == 1 else "aten.add.Tensor"
            made = block.call(name, tuple(parts), *wide.type.sizes, dtype="float32")
            block.kept |= {value.name: 0 for value in (*parts, made)}
        targets = block.value(self.tokens, dtype="int64", grad=False)
        block.call("aten.cross_entropy_loss.default", (wide, targets), 1, dtype=wide.type.dtype)
        return block

    def layer(self, routed: bool = False) -> Block:
        model, block = self.model, Block(self.given.dtype)
        x = block.value(self.rows, model.hidden)
        x = self._joined(block, x, self._attention(block, self._gathered(block, block.norm(x, model.rms))))
        inside = block.norm(x, model.rms)
        made = self._experts(block, inside) if routed else self._mlp(block, self._gathered(block, inside), model.ffn)
        block.unread = made.name if self.given.fused and not self.model.dropout else ""
        self._joined(block, x, made)
        if self.given.precision.startswith("fp8"):
            block.by_row, block.casts = self.given.precision == "fp8-rows", self.given.casts
            block.narrow = {i for i, op in enumerate(block.ops) if op.target in NARROW}
        return block

    def _share(self, width: int) -> int:
        return max(1, -(-width // self.given.tp))

    def _gathered(self, block: Block, x: Value) -> Value:
        """Sequence-parallel rows of all ranks: gathered again for the weights' gradient, kept as a shard."""
        if not self.split:
            return x
        whole = block.value(self.tokens, self.model.hidden)
        n_bytes = block.bytes_of(whole.name)
        block.kept[whole.name] = n_bytes // self.given.tp
        block.moves("tp", "all_gather", n_bytes)
        block.moves("tp", "all_gather", n_bytes, backward=True, hidden_by=len(block.ops))
        return whole

    def _backward_reduce(self, block: Block, x: Value) -> None:
        """Of the gradient of a column-parallel layer's input; its weight's gradient is made meanwhile."""
        if self.given.tp == 1:
            return
        kind = "reduce_scatter" if self.split else "all_reduce"
        block.moves("tp", kind, block.bytes_of(x.name), backward=True, hidden_by=len(block.ops) - 1)

    def _reduce(self, block: Block, x: Value) -> None:
        """Of a row-parallel layer's result."""
        if self.given.tp == 1:
            return
        n_bytes = block.bytes_of(x.name)
        block.moves("tp", "reduce_scatter" if self.split else "all_reduce", n_bytes)
        if self.split:
            block.moves("tp", "all_gather", n_bytes, backward=True)

    def _joined(self, block: Block, stream: Value, made: Value) -> Value:
        """Dropout and the residual sum, on the rows between layers; `made` is reduced already where it has these."""
        if made.type.sizes[0] != self.rows or not self.split:
            self._reduce(block, made)
        part = made if made.type.sizes[0] == self.rows else block.value(self.rows, self.model.hidden)
        if self.model.dropout:
            part = block.dropout(part)
            if self.given.fused:
                return part
        return block.pointwise("add.Tensor", stream, part)

    def _attention(self, block: Block, x: Value) -> Value:
        model, tp = self.model, self.given.tp
        if model.latent is not None:
            return self._latent(block, x)
        heads, key_heads, size = model.heads // tp, max(1, model.key_heads // tp), model.head_size
        for width in (heads, key_heads, key_heads) if self.given.separate else (heads + 2 * key_heads,):
            block.linear(x, width * size, model.bias)
        self._backward_reduce(block, x)
        if model.rms:
            self._rotary(block, (heads + key_heads) * size)
        if self.given.repeats and key_heads < heads:
            for _ in range(2):
                self._copied(block, self.tokens, heads * size)
            key_heads = heads
        made = self._core(block, heads, key_heads, size, size)
        return block.linear(made, model.hidden, model.bias)

    def _latent(self, block: Block, x: Value) -> Value:
        """The parts of a head that turn and those that do not are joined to queries and keys, and values are split from
        keys: a copy of each, as attention takes whole heads."""
        model, own = self.model, self.model.latent
        assert own is not None
        heads = model.heads // self.given.tp
        query = block.norm(block.linear(x, own.query_rank), True) if own.query_rank else x
        block.linear(query, heads * (own.plain + own.rotary))
        block.linear(x, own.value_rank + own.rotary)
        narrow = block.norm(block.value(self.tokens, own.value_rank), True)
        block.linear(narrow, heads * (own.plain + own.value))
        self._rotary(block, heads * own.rotary)
        for width in (own.plain + own.rotary, own.plain + own.rotary, own.value):
            self._copied(block, self.tokens, heads * width)
        made = self._core(block, heads, heads, own.plain + own.rotary, own.value)
        return block.linear(made, model.hidden)

    def _copied(self, block: Block, *shape: int) -> None:
        """A pass over memory that only moves values, and one for their gradients: what is joined, split or sorted.
        Priced as a negation, which keeps nothing for backward either."""
        block.pointwise("neg.default", block.value(*shape))

    def _rotary(self, block: Block, width: int) -> None:
        x = block.value(self.tokens, width)
        turned = block.pointwise("mul.Tensor", x, block.value(width, grad=False))
        if not self.given.fused:
            other = block.pointwise("mul.Tensor", x, block.value(width, grad=False))
            block.pointwise("add.Tensor", turned, other)

    def _core(self, block: Block, heads: int, key_heads: int, size: int, value_size: int) -> Value:
        """Over the whole sequence: with context parallelism a rank has its share of the pairs, as of fewer heads."""
        given, seq = self.given, self.model.seq
        batch, share = given.micro_batch, max(1, heads // given.cp)
        key_share = max(1, min(share, key_heads // given.cp))
        self._context(block, heads, key_heads, size, value_size)
        first = len(block.ops)
        if given.attention != "unfused":
            width = (size + value_size) // 2
            query, *pair = (block.value(batch, h, seq, width) for h in (share, key_share, key_share))
            block.call("aten.scaled_dot_product_attention.default", (query, *pair, None, 0.0, True), *query.type.sizes)
        else:
            self._unfused(block, batch * share, seq, size)
        if given.cp > 1 and given.context == "pieces":
            self._merged(block, heads * value_size)
        block.core = set(range(first, len(block.ops)))
        block.kernel = given.attention
        found = block.value(self.tokens, heads * value_size)
        if given.attention != "unfused":
            block.kept[found.name] = 0  # the kernel keeps its result already
        return found

    def _unfused(self, block: Block, heads: int, seq: int, size: int) -> None:
        scores = block.call(
            "aten.bmm.default", (block.value(heads, seq, size), block.value(heads, size, seq)), heads, seq, seq
        )
        if not self.given.fused:
            scores = block.pointwise("mul.Tensor", scores, block.value(seq, seq, grad=False))
        # One kernel that scales, masks and normalises rows moves as much memory as an activation, and keeps as much.
        weights = (
            block.pointwise("sigmoid.default", scores)
            if self.given.fused
            else block.call("aten.softmax.int", (scores, -1), heads, seq, seq)
        )
        if self.model.attention_dropout:
            weights = block.dropout(weights)
        block.call("aten.bmm.default", (weights, block.value(heads, seq, size)), heads, seq, size)

    def _merged(self, block: Block, width: int) -> None:
        """Results of one rank's keys after the other, joined in float32 by single ops, and their gradients added up: as
        many passes over memory for each rank but the first as three products of elements."""
        for _ in range(3 * (self.given.cp - 1)):
            one, other = (block.value(self.tokens, width, dtype="float32") for _ in range(2))
            block.call("aten.mul.Tensor", (one, other), self.tokens, width, dtype="float32")
            block.kept |= {one.name: 0, other.name: 0}

    def _context(self, block: Block, heads: int, key_heads: int, size: int, value_size: int) -> None:
        """PyTorch's `context_parallel` sees keys and values of all heads (torchtitan's model repeats them before) and
        returns their gradients in float32. It gathers while it attends to its own keys, and passes gradients on while
        it attends to the next ones. A ring passes keys and values on, and their gradients with them, while it attends
        to all blocks but the last. `all_gather` waits for both."""
        given = self.given
        if given.cp == 1:
            return
        each = self.tokens * self.size
        if given.context == "pieces":
            whole = each * heads * (size + value_size) * given.cp
            own = 1 / given.cp
            block.moves("cp", "all_gather", whole, behind_attention=own)
            block.moves("cp", "all_gather", whole, backward=True, behind_attention=own)
            block.moves("cp", "reduce_scatter", whole * 4 // self.size, backward=True, behind_attention=1 - own)
            return
        pair = each * key_heads * (size + value_size)
        if given.context == "all_to_all":
            for backward in (False, True):
                block.moves("cp", "all_to_all", pair + 2 * each * heads * size, backward)
            return
        whole, behind = pair * given.cp, 1 - 1 / given.cp if given.context == "ring" else 0.0
        block.moves("cp", "all_gather", whole, behind_attention=behind)
        block.moves("cp", "all_gather", whole, backward=True, behind_attention=behind / 2)
        block.moves("cp", "reduce_scatter", whole, backward=True, behind_attention=behind / 2)

    def _mlp(self, block: Block, x: Value, ffn: int) -> Value:
        model, width = self.model, self._share(ffn)
        if not model.gated:
            up = block.linear(x, width, model.bias)
            self._backward_reduce(block, x)
            return block.linear(block.pointwise("gelu.default", up), model.hidden, model.bias)
        if self.given.fused:
            for wide in (width, width) if self.given.separate else (2 * width,):
                block.linear(x, wide)
            self._backward_reduce(block, x)
            gate, up = block.value(self.tokens, width), block.value(self.tokens, width)
        else:
            gate, up = block.pointwise("silu.default", block.linear(x, width)), block.linear(x, width)
            self._backward_reduce(block, x)
        return block.linear(block.pointwise("mul.Tensor", gate, up), model.hidden)

    def _experts(self, block: Block, x: Value) -> Value:
        """Router, exchange of tokens, grouped products as if every expert had as many; shared experts too.

        With sequence parallelism each tensor-parallel rank routes and exchanges its own rows, and what arrived is
        gathered: all the rows that go to experts, not those of the sequence (Megatron-Core, `token_dispatcher.py`).
        What arrives is in the order of ranks: it is sorted by expert, and sorted back before it returns. Where loads
        are skewed this is the busiest rank, for which the others wait.
        """
        model, given = self.model, self.given
        scores = block.linear(x, model.experts)
        block.call("aten.softmax.int", (scores, -1), *scores.type.sizes)
        count, width = self.tokens * model.top, self._share(model.expert_ffn)
        own = max(1, model.experts // given.ep)
        busy = round(busiest_rank(self.tokens * given.ep, model.top, own, given.ep, given.skew).rows)
        arrived = busy * model.hidden * self.size
        sent = arrived // given.tp if self.split else arrived
        for backward in (False, True):
            for _ in range(2 if given.ep > 1 else 0):
                block.moves("ep", "all_to_all", sent, backward)
            for kind in ("all_gather", "reduce_scatter") if self.split else ():
                block.moves("tp", kind, arrived, backward)
        rows = block.pointwise("index_select.default", block.value(count, model.hidden))
        for _ in range(2 if given.ep > 1 and own > 1 else 0):
            self._copied(block, busy, model.hidden)
        ends = block.value(own, dtype="int32", grad=False)
        wide = width * (2 if model.gated else 1)
        up = block.weight(own, model.hidden, wide, expert=True)
        arrived_rows = rows if busy == count else block.value(busy, model.hidden)
        made = block.call("aten._grouped_mm.default", (arrived_rows, up, ends), busy, wide)
        if model.gated:
            gate = block.value(busy, width)
            made = block.pointwise("mul.Tensor", gate, block.value(busy, width))
        else:
            made = block.pointwise("gelu.default", made)
        down = block.weight(own, width, model.hidden, expert=True)
        back = block.call("aten._grouped_mm.default", (made, down, ends), busy, model.hidden)
        block.pointwise("index_select.default", back if busy == count else block.value(count, model.hidden))
        found = block.value(self.rows, model.hidden)
        if model.shared_ffn:
            shared = self._mlp(block, self._gathered(block, x), model.shared_ffn)
            if self.split:
                self._reduce(block, shared)
                shared = block.value(self.rows, model.hidden)
            found = block.pointwise("add.Tensor", found, shared)
        return found
