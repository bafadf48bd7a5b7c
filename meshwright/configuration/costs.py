"""Seconds and bytes of a Block: every op by `cost.op`, with the clocks of a busy device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from meshwright.capture.program import Op
from meshwright.cluster import Device
from meshwright.configuration.block import ATTENTION, PRODUCTS, Block, Moved
from meshwright.cost.op.compute import OpSeconds, whole_op_seconds
from meshwright.cost.op.narrow import narrow_linear_s, narrow_relief, under_load
from meshwright.profile import saved
from meshwright.profile.operands import packet

FLASH_2 = {"H100": (1.75, 1.6), "GH200": (1.75, 1.6), "H200": (1.55, 1.4)}
"""How much longer FlashAttention-2 takes than what was measured of these, forward and backward. FlashAttention-3: 1.5
to 2.0 and 1.5 to 1.75 times (Shah et al., 2024). On an H200, whose tables are PyTorch's own attention, 309 to 338
TFLOP/s forward and 277 to 319 backward were measured for 32 heads of 128 and 8,192 to 32,768 tokens (torch 2.11), where
the tables have 497 to 514 and 403 to 417; and where those of an H100 and this factor give 282 to 342 and 251 to 304."""
HOPPER = tuple(FLASH_2)
TRITON = (1.4, 1.8)
"""How much longer FlashAttention takes in Triton 2.0 than FlashAttention-2 on A100: Triton's own tests of 2022 and 2023
expect 36 and 37 % of the peak at 1,350 MHz forward and 24 and 25 % backward for 4 x 48 heads of 64 and 4,096 tokens
(`python/test/regression/test_performance.py`), where our table has 152 and 135 TFLOP/s."""
TF32 = 0.51
"""What products in TF32 reach of its peak, over what those in float32 reach of theirs: by it single layers of OPT-350M
on A100 (40 and 80 GB), and of that and of Llama 3 8B on GH200 are off by 3 % (eth-easl/sailor@cf2c8e3,
`profiles_tmp.json`), where all kernels on GH200 take 1.25 times ours. Without both they are 19 and 29 % too fast."""


def in_tf32(device: Device) -> Device:
    """As it multiplies float32 where TF32 is allowed, if it has units for that."""
    peaks = dict(device.peaks)
    rate = max(peaks.get("float32", 0.0), TF32 * peaks.get("tf32", 0.0))
    return replace(device, peaks=tuple((peaks | {"float32": rate}).items())) if rate else device


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one op or of several: forward, gradients of inputs and weights, each of products and of the rest."""

    products: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rest: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __add__(self, other: Work) -> Work:
        return Work(_sum(self.products, other.products), _sum(self.rest, other.rest))

    def under(self, load: tuple[float, float]) -> tuple[float, float, float]:
        """Seconds of both; load: how much longer products take than alone, and what moves memory."""
        forward_s, inputs_s, weights_s = (
            load[0] * a + load[1] * b for a, b in zip(self.products, self.rest, strict=True)
        )
        return forward_s, inputs_s, weights_s

    @property
    def seconds(self) -> float:
        return sum(self.products) + sum(self.rest)


def _sum(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Of one Block on one rank. whole: all of its ops; again: those that each kind of recomputation runs again.
    host_s: of asking for its ops, forward and backward. flops: of its products, forward and backward. kept_bytes: what
    each kind of recomputation keeps besides the Block's input; working_bytes: operands and results of the largest op.
    weights: elements of its `parameters`, those of experts apart. attention_s: of attention, forward and backward."""

    whole: Work
    again: dict[str, Work]
    host_s: tuple[float, float]
    ops: int
    flops: float
    kept_bytes: dict[str, int]
    working_bytes: int
    moved: tuple[Moved, ...]
    weights: int
    expert_weights: int
    parameters: int
    attention_s: tuple[float, float]


def block_cost(block: Block, device: Device) -> BlockCost:
    priced = [_op_work(block, place, device) for place in range(len(block.ops))]
    works = [work for work, _ in priced]
    everything = range(len(block.ops))
    kept_ops = _kept_by_policy(block)
    again = {
        "none": Work(),
        "selective": sum((_forward(works[i]) for i in block.core), Work()),
        "ops": sum((_forward(works[i]) for i in everything if i not in kept_ops), Work()),
        "full": sum((_forward(work) for work in works), Work()),
    }
    host_s = sum(cost.forward_host_s for _, cost in priced), sum(cost.backward_host_s for _, cost in priced)
    return BlockCost(
        sum(works, Work()),
        again,
        host_s,
        len(block.ops),
        sum(_flops(block, op) for op in block.ops),
        {
            "none": _kept_bytes(block, frozenset()),
            "selective": _kept_bytes(block, frozenset(block.core)),
            "ops": sum(block.bytes_of(block.ops[i].name) for i in kept_ops if block.ops[i].name != block.unread),
            "full": 0,
        },
        max(_working_bytes(block, op) for op in block.ops),
        tuple(block.moved),
        sum(block.weights.values()),
        sum(block.experts.values()),
        len(block.weights) + len(block.experts),
        _attention_s(block, works),
    )


def _attention_s(block: Block, works: list[Work]) -> tuple[float, float]:
    found = [work.rest for op, work in zip(block.ops, works, strict=True) if packet(op.target) == ATTENTION]
    return sum(rest[0] for rest in found), sum(rest[1] for rest in found)


def _forward(work: Work) -> Work:
    return Work((work.products[0], 0.0, 0.0), (work.rest[0], 0.0, 0.0))


def _op_work(block: Block, place: int, device: Device) -> tuple[Work, OpSeconds]:
    op = block.ops[place]
    found = whole_op_seconds(op, block.values, device)
    seconds = (found.forward_s, found.input_s, found.weight_s)
    if place in block.narrow:
        grouped, relief = packet(op.target) == "_grouped_mm", narrow_relief(device)
        narrow = _narrow_groups_s(block, op, device, seconds) if grouped else _narrow_s(block, op, device)
        seconds = (relief * narrow[0], relief * narrow[1], relief * narrow[2])
    if packet(op.target) == ATTENTION:
        slower = _kernel_slower(block.kernel, device)
        seconds = (slower[0] * found.forward_s, slower[1] * found.input_s, 0.0)
    return (Work(seconds) if packet(op.target) in PRODUCTS else Work(rest=seconds)), found


def _kernel_slower(kernel: str, device: Device) -> tuple[float, float]:
    """How much longer a kernel of attention takes in a long step, forward and backward, than the one measured of the
    device."""
    older = FLASH_2.get(device.name.partition("-")[0], (1.0, 1.0)) if kernel in ("flash2", "triton") else (1.0, 1.0)
    than = TRITON if kernel == "triton" else (1.0, 1.0)
    kept = device.achievable_fraction("sustained_attention")
    return than[0] * older[0] / kept, than[1] * older[1] / kept


def _narrow_s(block: Block, op: Op, device: Device) -> tuple[float, float, float]:
    """Its share of one product of all that read the same input, which is quantised once for them."""
    x, weight = (block.values[name].type.sizes for name in op.operands()[:2])
    together = [block.ops[i] for i in block.narrow if block.ops[i].operands()[0] == op.operands()[0]]
    width = sum(block.values[one.operands()[1]].type.sizes[0] for one in together)
    forward_s, inputs_s, weights_s = narrow_linear_s(device, prod(x[:-1]), width, weight[1], block.by_row, block.casts)
    share = weight[0] / width
    return share * forward_s, share * inputs_s, share * weights_s


def _narrow_groups_s(
    block: Block, op: Op, device: Device, wide: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Of grouped products that take `wide` seconds: as much less as one expert's product takes in float8."""
    (count, _), (experts, inner, width) = (block.values[name].type.sizes for name in op.operands()[:2])
    rows = max(1, count // experts)
    one = Block(block.dtype)
    one.linear(one.value(rows, inner), width)
    alone = whole_op_seconds(one.ops[0], one.values, device)
    narrow = narrow_linear_s(device, rows, width, inner, block.by_row, block.casts)
    return (
        wide[0] * narrow[0] / alone.forward_s,
        wide[1] * narrow[1] / alone.input_s,
        wide[2] * narrow[2] / alone.weight_s,
    )


def _flops(block: Block, op: Op) -> float:
    """Of a product, forward and backward."""
    name, result = packet(op.target), prod(op.results[0].type.sizes)
    if name == ATTENTION:
        return 7.0 * result * block.values[op.operands()[1]].type.sizes[-2]
    return 6.0 * result * block.values[op.operands()[0]].type.sizes[-1] if name in PRODUCTS else 0.0


def _kept_by_policy(block: Block) -> set[int]:
    """Attention and every second linear layer."""
    linear = [i for i, op in enumerate(block.ops) if op.target == "aten.linear.default"]
    return set(linear[::2]) | (block.core if len(block.core) == 1 else set())


def _kept_bytes(block: Block, without: frozenset[int]) -> int:
    """What backward reads of a Block that keeps all but what these ops make; each value once."""
    made = {value.name for i in without for value in block.ops[i].results}
    kept: dict[str, int] = {}
    auxiliary = 0
    for place, op in enumerate(block.ops):
        reads = saved(op, block.values, "cuda")
        names = op.operands()
        found = [names[i] for i in reads.operands] + [op.results[i].name for i in reads.results]
        kept |= {name: block.kept.get(name, block.bytes_of(name)) for name in found}
        auxiliary += 0 if place in without else reads.auxiliary_bytes
    return auxiliary + sum(size for name, size in kept.items() if name not in made and not name.startswith("w"))


def _working_bytes(block: Block, op: Op) -> int:
    names = [name for name in op.operands() if not name.startswith("w")]
    return sum(map(block.bytes_of, names)) + sum(block.bytes_of(value.name) for value in op.results)


def loaded(costs: list[BlockCost], device: Device, dtype: str) -> tuple[float, float]:
    """How much longer products take than alone, and what moves memory, where a device does nothing but this."""
    seconds = sum(cost.whole.seconds for cost in costs)
    return under_load(device, dtype, sum(cost.flops for cost in costs) / seconds) if seconds else (1.0, 1.0)
