"""The model families at a small size, and their Programs as one list of ops with names of their own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.program import Op, Program, Ref, SegmentGraph, Value
from meshwright.models.gpt import GPT
from meshwright.models.llama import Llama
from meshwright.models.resnet import ResNet

FAMILIES = ("gpt", "llama", "resnet")


def model_and_batch(family: str) -> tuple[nn.Module, dict[str, Tensor]]:
    tokens = {name: torch.randint(0, 30, (3, 12)) for name in ("tokens", "targets")}
    if family == "gpt":
        return GPT(2, 24, 6, 36, 30, 12, tied=False), tokens
    if family == "llama":
        return Llama(2, 48, 12, 6, 36, 30, tied=False, rope_base=1e4), tokens
    return ResNet((1, 2), 6, 12), {"images": torch.randn(3, 3, 24, 24), "labels": torch.randint(0, 12, (3,))}


def captured(family: str) -> Program:
    return capture(*model_and_batch(family))


def flat_ops(program: Program) -> tuple[list[Op], dict[str, Value]]:
    """All ops of all segments, every value under one name; parameters and buffers are among the values."""
    ops: list[Op] = []
    values: dict[str, Value] = {}

    def add(graph: SegmentGraph, bound: dict[str, str], prefix: str) -> None:
        names = {v.name: prefix + v.name for op in graph.ops for v in op.results} | bound
        values.update({names[v.name]: replace(v, name=names[v.name]) for v in graph.arguments()})
        for op in graph.ops:
            renamed = op.map(lambda leaf: Ref(names[leaf.name]) if isinstance(leaf, Ref) else leaf)
            results = tuple(replace(v, name=names[v.name]) for v in op.results)
            values.update({v.name: v for v in results})
            ops.append(replace(renamed, results=results))

    prologue = program.prologue.at(program.batch)
    add(prologue, {v.name: v.name for v in prologue.arguments()} | {n: n for n in prologue.outputs}, "prologue/")
    for segment in program.segments:
        graph = program.graph(segment).at(program.batch)
        kinds = ("inputs", "shared_values", "params", "buffers")
        bound = {
            v.name: name for kind in kinds for v, name in zip(getattr(graph, kind), getattr(segment, kind), strict=True)
        }
        bound |= dict(zip(graph.outputs, segment.outputs, strict=True))
        add(graph, bound, f"{segment.name}/")
    return ops, values


def next_buffers(program: Program) -> set[str]:
    """Names, as in `flat_ops`, of the values that become buffers: they stand in for tensors written in place."""
    pairs = ((segment, program.graph(segment)) for segment in program.segments)
    return {f"{segment.name}/{value}" for segment, graph in pairs for _, value in graph.updates}
