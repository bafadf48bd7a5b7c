"""Around a pipeline's step: dropout, evaluating, clipping, checkpoints, export, a stage that fails, bytes held."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import prod
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import GlooPool, copies

from meshwright.capture import Program, capture
from meshwright.cluster import load_cluster
from meshwright.models.gpt import GPT
from meshwright.plan import Plan, StageLink
from meshwright.planner.memory.plans import one_device_plan
from meshwright.planner.pipeline.by_hand import cut_stages, equal_cuts
from meshwright.predict.step import pipeline_predicted as predicted
from meshwright.predict.ways import stage_ways, with_choices


def model_and_batch() -> tuple[GPT, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = GPT(layers=2, hidden=48, heads=6, ffn=96, vocab=96, seq=12, tied=True, dropout=0.3).double()
    targets = torch.randint(0, 96, (6, 12))
    targets[0, :7] = -100  # micro-batches that weigh differently
    return model, {"tokens": torch.randint(0, 96, (6, 12)), "targets": targets}


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*model_and_batch())


@pytest.fixture(scope="module")
def one(program: Program) -> Plan:
    return replace(one_device_plan(program, load_cluster("local:1").mesh((1,))), microbatches=3)


@pytest.fixture(scope="module")
def piped(program: Program, one: Plan) -> Plan:
    return cut_stages(program, [one, one], equal_cuts(len(program.segments), 2))


def train(rank: int, plan_json: bytes, folder: str, steps: int, resume: bool) -> dict[str, Any]:
    import meshwright as mw

    model, batch = model_and_batch()
    trainer = mw.parallelize(model, Plan.from_json(plan_json), seed=7)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    if resume:
        mw.load(trainer, optimizer, folder)
    losses, norms = [], []
    for _ in range(steps):
        own = {key: batch[key][where] for key, where in trainer.data_slice().items()}
        losses.append(trainer.step(own).item())
        norms.append(trainer.clip_grad_norm_(0.05).item())
        optimizer.step()
        optimizer.zero_grad()
    evaluated = trainer.evaluate(batch, global_batch=True).item()
    if not resume:
        mw.save(trainer, optimizer, folder)
    file = mw.export(trainer, f"{folder}/model.safetensors")[0]
    return {"losses": losses, "norms": norms, "evaluated": evaluated, "reads": [*own], "file": str(file)}


def test_dropout_clipping_evaluation_and_checkpoints_are_those_of_one_process(
    tmp_path: Path, one: Plan, piped: Plan, ranks: Callable[[int], GlooPool]
) -> None:
    from safetensors.torch import load_file

    folders = [str(tmp_path / name) for name in ("one", "piped")]
    true = ranks(1).run(train, one.to_json(), folders[0], 2, False)[0]
    found = ranks(2).run(train, piped.to_json(), folders[1], 2, False)
    assert [rank["reads"] for rank in found] == [["tokens"], ["targets"]]
    for rank in found:
        for key in ("losses", "norms", "evaluated"):
            assert rank[key] == pytest.approx(true[key], rel=1e-9), key
    assert true["norms"][0] > 0.05
    mine, other = load_file(found[0]["file"]), load_file(true["file"])
    assert mine.keys() == other.keys()
    assert all(torch.allclose(mine[key], other[key], rtol=1e-9, atol=1e-12) for key in mine)
    # Each goes on from what the other saved.
    crossed = ranks(1).run(train, one.to_json(), folders[1], 1, True)[0]
    for rank in ranks(2).run(train, piped.to_json(), folders[0], 1, True):
        for key in ("losses", "norms", "evaluated"):
            assert rank[key] == pytest.approx(crossed[key], rel=1e-8), key


def counted(rank: int, plan_json: bytes) -> tuple[int, int]:
    """(all that was alive at once, of it what micro-batches kept after an instruction)"""
    import meshwright as mw

    model, batch = model_and_batch()
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    trainer.count_bytes()
    trainer.step(batch, global_batch=True)
    return trainer.peak_bytes, trainer.held_bytes


def recomputing_all(plan: Plan, program: Program) -> Plan:
    """Every segment as the last of its ways has it: what it keeps least."""
    ways = [options[-1] for stage in plan.stages for options in stage_ways(plan, program, stage)]
    choices = [
        replace(plan.choice(index), recompute=kept.recompute, keep=kept.keep, chunks=kept.chunks)
        for index, kept in enumerate(ways)
    ]
    return with_choices(plan, choices)


def test_bytes_alive_are_those_that_the_simulator_says(
    program: Program, piped: Plan, ranks: Callable[[int], GlooPool]
) -> None:
    """Whatever the schedule, recomputing or not. A run has no optimizer's states yet: two numbers a parameter."""
    wires = tuple(StageLink(*ends, 1e-4, 1e9) for ends in ((0, 1), (1, 0)))
    plan = replace(piped, links=wires)
    cases = {
        "gpipe": replace(plan, schedule="gpipe"),
        "1f1b": plan,
        "1f1b, recomputing": recomputing_all(plan, program),
        "zero-bubble, recomputing": recomputing_all(replace(plan, schedule="zero-bubble"), program),
    }
    kept = {}
    for name, case in cases.items():
        found, _ = predicted(case, program)
        runs = ranks(2).run(counted, case.to_json())
        kept[name] = [held for _, held in runs]
        for (alive, _), stage, said in zip(runs, plan.stages, found.predicted.stages, strict=True):
            own = [p for p in program.parameters if plan.home(program, p.name) is stage]
            states = 2 * sum(p.type.itemsize * prod(p.type.sizes) for p in own)
            assert said.peak_bytes - states == pytest.approx(alive, rel=0.05), name
    assert kept["1f1b"][1] < 0.6 * kept["gpipe"][1], "of three micro-batches the last stage holds one"


def doomed(rank: int, folder: str, plan_json: bytes, pipe: Connection) -> None:
    """A process that ends as an error ends it; what it has to say goes through the pipe."""
    import torch.distributed as dist

    import meshwright as mw

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model, batch = model_and_batch()
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    if trainer.stage == 1:
        trainer._interpreter.parts[0].generated.pairs.clear()
    try:
        trainer.step(batch, global_batch=True)
    except BaseException as error:
        pipe.send((type(error).__name__, str(error)))
    os._exit(1)


def test_a_stage_that_fails_ends_all_with_its_own_error(tmp_path: Path, piped: Plan) -> None:
    context = copies()
    ends = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=doomed, args=(rank, str(tmp_path), piped.to_json(), ends[rank][1])) for rank in range(2)
    ]
    for process in processes:
        process.start()
    kind, said = ends[1][0].recv()
    assert kind == "RunError"
    assert "stage 1 (layers 2 to 3) failed on rank 1 at `forward 2 mb0`: KeyError" in said
    kind, said = ends[0][0].recv()
    assert kind == "LostError", "the other stage does not take the blame"
    assert "rank 1 failed: stage 1 (layers 2 to 3) failed on rank 1 at `forward 2 mb0`: KeyError" in said
    for process in processes:
        process.join()
