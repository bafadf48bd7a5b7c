"""Ops on a GPU beside what the table says of them: what they keep, and the most they allocate.

`python tests/profile/cuda_cases.py` prints one line per op; it needs a GPU and nothing but torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from meshwright.profile.operands import type_bytes
from meshwright.profile.places import Place, Places, kept_in_place
from meshwright.profile.working import backward_working_bytes, forward_working_bytes, hands_on_gradient
from meshwright.rules.prove import Case, case, run_by_position

SDPA = "aten.scaled_dot_product_attention.default"
MIB = 1 << 20


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_()


def heads(batch: int, count: int, seq: int, width: int, dtype: torch.dtype) -> Tensor:
    """As a projection leaves them: heads innermost."""
    flat = torch.randn(batch, seq, count, width, dtype=dtype, device="cuda")
    return flat.transpose(1, 2).requires_grad_()


def attention(
    dtype: torch.dtype, kv: int = 8, width: int = 64, seq: int = 1000, mask: str = "", **named: object
) -> Case:
    query = heads(4, 8, seq, width, dtype)
    key, value = heads(4, kv, seq, width, dtype), heads(4, kv, seq, width, dtype)
    masks = {
        "bool": lambda: (torch.rand(4, 1, seq, seq, device="cuda") > 0.1,),
        "float": lambda: (torch.rand(4, 1, seq, seq, device="cuda", dtype=dtype),),
        "bias": lambda: (torch.rand(1, 8, seq, seq, device="cuda", dtype=dtype).requires_grad_(),),
        "": lambda: (),
    }
    return case(SDPA, query, key, value, *masks[mask](), **named)


def norm(target: str, dtype: torch.dtype, bias: bool) -> Case:
    weights = [floats(1024, dtype=dtype) for _ in range(2 if bias else 1)]
    return case(target, floats(64, 512, 1024, dtype=dtype), (1024,), *weights)


def batch_norm(dtype: torch.dtype) -> Case:
    x, weights = floats(32, 64, 56, 56, dtype=dtype), [floats(64, dtype=dtype) for _ in range(2)]
    stats = [torch.rand(64, device="cuda", dtype=dtype) for _ in range(2)]
    return case("meshwright.capture.functional:batch_norm", x, *weights, *stats, 0.1, 1e-5)


def conv(dtype: torch.dtype, size: int, inner: int, outer: int, width: int, stride: int = 1) -> Case:
    x, w = floats(32, inner, size, size, dtype=dtype), floats(outer, inner, width, width, dtype=dtype)
    return case("aten.conv2d.default", x, w, None, (stride, stride), (width // 2, width // 2))


def entropy(dtype: torch.dtype, **named: object) -> Case:
    targets = torch.randint(0, 32000, (2048,), device="cuda")
    return case("aten.cross_entropy_loss.default", floats(2048, 32000, dtype=dtype), targets, **named)


F32, BF16 = torch.float32, torch.bfloat16
CASES: dict[str, Callable[[], Case]] = {}
for _name, _dtype in (("fp32", F32), ("bf16", BF16)):
    for _what, _named in {
        "": {},
        " causal": {"is_causal": True},
        " dropout": {"dropout_p": 0.1},
        " causal dropout": {"is_causal": True, "dropout_p": 0.1},
        " bool mask": {"mask": "bool"},
        " float mask": {"mask": "float"},
        " bias": {"mask": "bias"},
        " wide": {"width": 128, "is_causal": True},
        " odd": {"width": 36},
        " grouped": {"kv": 2, "is_causal": True, "enable_gqa": True},
    }.items():
        CASES[f"attention {_name}{_what}"] = lambda dtype=_dtype, named=_named: attention(dtype, **named)  # type: ignore[misc]
    CASES |= {
        f"layer_norm {_name}": lambda d=_dtype: norm("aten.layer_norm.default", d, True),  # type: ignore[misc]
        f"rms_norm {_name}": lambda d=_dtype: norm("aten.rms_norm.default", d, False),  # type: ignore[misc]
        f"batch_norm {_name}": lambda d=_dtype: batch_norm(d),  # type: ignore[misc]
        f"group_norm {_name}": lambda d=_dtype: case(  # type: ignore[misc]
            "aten.group_norm.default", floats(8, 64, 32, 32, dtype=d), 4, floats(64, dtype=d), floats(64, dtype=d)
        ),
        f"cross_entropy {_name}": lambda d=_dtype: entropy(d),  # type: ignore[misc]
        f"cross_entropy smoothed {_name}": lambda d=_dtype: entropy(d, label_smoothing=0.1),  # type: ignore[misc]
        f"dropout {_name}": lambda d=_dtype: case("aten.dropout.default", floats(512, 4096, dtype=d), 0.1, True),  # type: ignore[misc]
        f"gelu {_name}": lambda d=_dtype: case("aten.gelu.default", floats(512, 4096, dtype=d)),  # type: ignore[misc]
        f"softmax {_name}": lambda d=_dtype: case("aten.softmax.int", floats(512, 4096, dtype=d), -1),  # type: ignore[misc]
        f"max_pool2d {_name}": lambda d=_dtype: case("aten.max_pool2d.default", floats(8, 64, 64, 64, dtype=d), (2, 2)),  # type: ignore[misc]
        f"embedding {_name}": lambda d=_dtype: case(  # type: ignore[misc]
            "aten.embedding.default", floats(32000, 256, dtype=d), torch.randint(0, 32000, (8, 512), device="cuda")
        ),
        f"linear {_name}": lambda d=_dtype: case(  # type: ignore[misc]
            "aten.linear.default", floats(8, 512, 1024, dtype=d), floats(4096, 1024, dtype=d), floats(4096, dtype=d)
        ),
        f"mul broadcast {_name}": lambda d=_dtype: case(
            "aten.mul.Tensor", floats(512, 4096, dtype=d), floats(4096, dtype=d)
        ),  # type: ignore[misc]
        f"conv 7x7 {_name}": lambda d=_dtype: conv(d, 224, 3, 64, 7, 2),  # type: ignore[misc]
        f"conv 1x1 {_name}": lambda d=_dtype: conv(d, 56, 64, 256, 1),  # type: ignore[misc]
        f"conv 3x3 wide {_name}": lambda d=_dtype: conv(d, 56, 64, 64, 3),  # type: ignore[misc]
        f"conv 3x3 deep {_name}": lambda d=_dtype: conv(d, 14, 256, 256, 3),  # type: ignore[misc]
        f"conv 3x3 stride {_name}": lambda d=_dtype: conv(d, 28, 256, 256, 3, 2),  # type: ignore[misc]
    }


@dataclass(frozen=True)
class Outcome:
    """kept_bytes: besides operands and results. working: beyond what is returned and kept; beyond the gradients."""

    name: str
    node: str
    table_named: bool
    table_kept_bytes: int
    kept_bytes: int
    table_forward_working_bytes: int
    forward_working_bytes: int
    table_backward_working_bytes: int
    backward_working_bytes: int


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def round_up(size: int) -> int:
    return -(-size // 512) * 512


def outcome(name: str) -> Outcome:
    given = CASES[name]()
    operands = list(given.operands)
    run_by_position(given.op, operands)[0].sum().backward()  # workspaces are there from now on
    for tensor in operands:
        tensor.grad = None
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(storage(tensor), tensor)
        return tensor

    torch.cuda.reset_peak_memory_stats()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        results = run_by_position(given.op, operands)
    torch.cuda.synchronize()
    forward_working = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    touched = {storage(t) for t in (*operands, *results)}
    beside = {key: t for key, t in kept.items() if key not in touched and t.is_cuda}
    names, node = set(kept) & touched, results[0].grad_fn.name()
    kept_bytes = sum(t.untyped_storage().nbytes() for t in beside.values())
    gradient = torch.randn_like(results[0])
    kept.clear()
    beside.clear()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.backward(results[0], gradient)
    torch.cuda.synchronize()
    backward_peak = torch.cuda.max_memory_allocated() - before
    values = [given.values()[n] for n in given.op.operands()]
    grads = sum(
        round_up(type_bytes(v.type))
        for i, v in enumerate(values)
        if v.grad and not hands_on_gradient(given.op, i, values)
    )
    places = placed(given, operands)
    named, expected = table(given, operands, results)
    return Outcome(
        name, node, named == names, expected, kept_bytes,
        forward_working_bytes(given.op, values, places), forward_working,
        backward_working_bytes(given.op, values, places), backward_peak - grads,
    )  # fmt: skip


def placed(given: Case, operands: list[Tensor]) -> Places:
    names = given.op.operands()
    return Places({n: Place(n, t.stride()) for n, t in zip(names, operands, strict=True)}, {}, "cuda")


def table(given: Case, operands: list[Tensor], results: tuple[Tensor, ...]) -> tuple[set[int], int]:
    """Storages that the table names, and the bytes kept besides."""
    found = kept_in_place(given.op, given.values(), placed(given, operands))
    named = {storage(operands[i]) for i in found.operands} | {storage(results[i]) for i in found.results}
    return named, found.auxiliary_bytes


def main() -> None:
    rows = []
    for name in CASES:
        try:
            rows.append(asdict(outcome(name)))
        except Exception as error:
            rows.append({"name": name, "error": f"{type(error).__name__}: {error}"[:200]})
        row = rows[-1]
        if "error" in row:
            print(row)
            continue
        right = "ok   " if row["table_named"] and abs(row["table_kept_bytes"] - row["kept_bytes"]) <= 64 else "WRONG"
        print(
            f"{right} {name:<32} {row['node'][:44]:<44} kept {row['table_kept_bytes']} {row['kept_bytes']}"
            f" forward {row['table_forward_working_bytes'] / MIB:.2f} {row['forward_working_bytes'] / MIB:.2f}"
            f" backward {row['table_backward_working_bytes'] / MIB:.2f} {row['backward_working_bytes'] / MIB:.2f}"
        )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
