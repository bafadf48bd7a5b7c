"""Tests share a traced graph, and what they get is what another trace would be."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import captures
import pytest
import torch
import traces
from small_models import small_model
from torch import Tensor

from meshwright.generate.joint import Joint


def lies(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(lies, value))
    if not isinstance(value, Tensor):
        return value
    size = value.untyped_storage().nbytes()
    return value.dtype, value.device, tuple(value.shape), value.stride(), value.storage_offset(), size


def shown(found: Joint) -> object:
    nodes = found.module.graph.nodes
    values = [(node.name, str(node.target), str(node.args), lies(node.meta.get("val"))) for node in nodes]
    names = {node.name: name for node, name in found.names.items()}
    return found.module.code, values, names, found.graph, found.own, found.tangents, found.grad_params


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_what_is_written_is_read_again(name: str) -> None:
    for graph in captures.capture(*small_model(name)).graphs:
        made = traces.traced(graph.at(4))
        again = traces.restored(pickle.loads(pickle.dumps(traces.written(made))))
        assert shown(again) == shown(made)
        torch.manual_seed(0)
        fakes = [node.meta["val"] for node in made.module.graph.nodes if node.op == "placeholder"]
        given = [torch.randn(one.shape) if one.is_floating_point() else torch.randint(0, 4, one.shape) for one in fakes]
        for one, other in zip(made.module(*given), again.module(*given), strict=True):
            assert one is other is None or torch.equal(one, other)


def test_a_graph_is_traced_by_one_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(captures.FOLDER, str(tmp_path))
    graph = captures.capture(*small_model("narrow")).graphs[0].at(4)
    made: list[Joint] = []
    monkeypatch.setattr(traces, "traced", lambda *given: made.append(TRACED(*given)) or made[-1])
    found = []
    for _ in range(2):  # as in another process, which remembers nothing
        traces.trace.cache_clear()
        found.append(traces.trace(graph))
    assert len(made) == 1
    assert shown(found[1]) == shown(found[0])
    with traces.fresh():
        traces.trace(graph)
    assert len(made) == 2


TRACED = traces.traced
