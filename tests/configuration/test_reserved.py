"""What PyTorch's allocator reserves beyond the peak, and what losses and projections hold: closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cluster import load_cluster
from meshwright.configuration import Configuration, Transformer
from meshwright.configuration.costs import block_cost
from meshwright.configuration.framework import PLAIN
from meshwright.configuration.layers import Layers
from meshwright.configuration.reserved import pooled_bytes, waiting_bytes, workspace_bytes
from meshwright.configuration.step import Step

SMALL = Transformer(8, 1024, 16, 4096, 32000, 1024)
LLAMA = Transformer(8, 1024, 16, 4096, 32000, 1024, kv_heads=4, gated=True, rms=True, bias=False)
WHOLE = 1024 * 1024 * 2
DEVICE = load_cluster("h100:8").devices[0]


def _step(given: Configuration, model: Transformer = SMALL, cluster: str = "h100:8") -> Step:
    return Step(model, given, load_cluster(cluster), PLAIN)


def test_operands_of_collectives_wait_while_the_host_runs_ahead() -> None:
    given = Configuration(tp=8, sp=True, global_batch=8, recorded=True)
    assert 4 * WHOLE < waiting_bytes(_step(given)) < 4 * WHOLE * 1024
    assert waiting_bytes(_step(replace(given, global_batch=1))) == 2 * SMALL.layers * WHOLE
    assert waiting_bytes(_step(replace(given, recorded=False))) == 0


def test_a_first_stage_that_waits_for_others_has_the_operands_of_its_whole_warm_up() -> None:
    given = Configuration(tp=2, pp=4, sp=True, global_batch=8, recorded=True)
    assert waiting_bytes(_step(given)) == 2 * 2 * 4 * WHOLE  # two of each layer, two layers, four micro-batches
    assert waiting_bytes(_step(replace(given, global_batch=2))) == 2 * 2 * 2 * WHOLE


def test_a_group_over_many_hosts_does_not_run_ahead() -> None:
    given = Configuration(tp=16, pp=2, sp=True, global_batch=8, recorded=True)
    assert waiting_bytes(_step(given, cluster="h100:4x8")) == 2 * 4 * 2 * WHOLE
    assert waiting_bytes(_step(given, cluster="h100:8x4")) == 4 * WHOLE


def test_the_ranks_of_one_host_are_on_one_host() -> None:
    given = Configuration(tp=4, pp=2, sp=True, global_batch=8, recorded=True)
    assert waiting_bytes(_step(given)) == 2 * 4 * 2 * WHOLE


def test_the_lead_of_a_host_grows_with_micro_batches_until_the_queue_is_full() -> None:
    """A first stage with most layers, on two hosts: nothing waits that one stage's queue would not take."""
    given = Configuration(tp=8, pp=2, sp=True, micro_batch=16, recorded=True, stage_layers=(6, 2))
    held = [
        waiting_bytes(_step(replace(given, global_batch=16 * count), cluster="h100:2x8")) / (16 * WHOLE)
        for count in (2, 3, 4, 8, 64, 128)
    ]
    few, more, _, _, full, still = held
    assert held == sorted(held)
    assert more / few == pytest.approx(2.0, rel=1e-3)  # two operands of each forward, two of each backward
    one_stage = waiting_bytes(_step(replace(given, pp=1, stage_layers=(), global_batch=64))) / (16 * WHOLE)
    assert full == still == pytest.approx(one_stage)


def test_cublas_works_in_memory_of_the_allocator() -> None:
    """32 MiB on Hopper for each of two threads; on an A100 the 8.125 MiB that PyTorch's memory snapshots show."""
    assert workspace_bytes(DEVICE) == 64 * 2**20
    assert workspace_bytes(load_cluster("a100:8").devices[0]) == 2 * 8_519_680


@pytest.mark.parametrize(("loss", "tp", "copies"), [("half", 1, 1.0), ("eager", 1, 3.0), ("eager", 8, 4.0)])
def test_logits_are_held_as_often_as_the_loss_has_copies(loss: str, tp: int, copies: float) -> None:
    """In float32 copies; in half precision the logits and their gradient make one."""
    given = Configuration(tp=tp, loss=loss, sp=tp > 1)
    cost = block_cost(Layers(SMALL, given).loss(), DEVICE)
    held = cost.kept_bytes["none"] + cost.working_bytes
    assert held == pytest.approx(copies * 4 * 1024 * 32000 / tp, rel=0.01)


@pytest.mark.parametrize("fused", [False, True])
def test_selective_recomputation_of_separate_projections_keeps_every_second_one(fused: bool) -> None:
    """But compiled code does not keep the last, which no backward reads."""
    given = Configuration(recompute="ops", separate=True, fused=fused)
    kept = block_cost(Layers(LLAMA, given).layer(), DEVICE).kept_bytes["ops"]
    queries, values, gate, down, attention = 1024, 256, 4096, 1024, 1024
    assert kept == 1024 * 2 * (queries + values + gate + attention + (0 if fused else down))


def test_an_input_in_float8_is_quantised_once_for_all_products_that_read_it() -> None:
    given = Configuration(precision="fp8")
    joined, parted = (
        block_cost(Layers(LLAMA, replace(given, separate=separate)).layer(), DEVICE).whole.products
        for separate in (False, True)
    )
    assert parted == pytest.approx(joined)


def test_streams_of_fsdp_have_pools_of_their_own() -> None:
    given = Configuration(dp=8, zero=3, global_batch=8)
    step = _step(given)
    outer = step.blocks["head"].weights + step.blocks["embedding"].weights
    layer = step.blocks["dense"]
    wanted = 2 * (outer + layer.weights) + 6 * outer * 9 // 8 + layer.working_bytes
    assert pooled_bytes(step) == wanted
