"""The interpreter: plays one rank's Instructions on real tensors. No autograd runs here; pairs carry the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.profiler import record_function

from meshwright.capture.counter import RandomState
from meshwright.errors import RunError
from meshwright.layout.transport import use_transport
from meshwright.plan import Instruction
from meshwright.runtime.fail import is_lost
from meshwright.runtime.step.leaving import last_backwards
from meshwright.runtime.step.link import storage
from meshwright.runtime.step.live import LiveBytes
from meshwright.runtime.step.microbatch import MicroBatch
from meshwright.runtime.step.segments import Segments
from meshwright.runtime.step.weigh import Weigher
from meshwright.torch_compat import profiler_records


class Interpreter:
    """Plays a step; `progress` is told each instruction before it runs. held_bytes: with `counts`, the most that
    micro-batches kept alive at once in the last step: saved values, boundary values, gradients, what is under way.
    live: all that was alive."""

    def __init__(self, segments: Segments, progress: Callable[[object], None] = lambda _: None) -> None:
        self.segments, self.progress = segments, progress
        self.program, self.parts, self.exchange = segments.program, segments.parts, segments.exchange
        self.batches, self.buffers, self.plan = segments.batches, segments.buffers, segments.plan
        last = next((part for part in self.parts if part.stage.end == len(self.program.segments)), None)
        self.weigher = Weigher(self.program, last.every if last else (), self.plan, segments.device)
        self.micro: list[MicroBatch] = []
        self._played: Sequence[Instruction] = ()
        self.evaluating, self.counts, self.held_bytes, self.live = False, False, 0, LiveBytes()
        self.calls = {
            "forward": segments.forward,
            "backward": segments.backward,
            "backward_input": segments.input_half,
            "backward_weight": segments.weight_half,
            "recompute": segments.restore,
            "pass": segments.pass_on,
            "drop": segments.drop,
        }

    def run(
        self, instructions: Sequence[Instruction], batches: Sequence[Mapping[str, Tensor]], random: RandomState
    ) -> Tensor:
        """One step up to the optimizer's; returns the loss of all micro-batches."""
        self.evaluating, self.held_bytes = False, 0
        if instructions is not self._played:
            self._played, self.segments.leaving.last = instructions, last_backwards(instructions)
        with self._marked("training step"):
            return self._run(instructions, batches, random)

    def _run(
        self, instructions: Sequence[Instruction], batches: Sequence[Mapping[str, Tensor]], random: RandomState
    ) -> Tensor:
        self._begin(batches, random)
        with self._counted():
            self.exchange.tied_replicas.send()
            self._play(instructions)
            for part in self.parts:
                part.store.wait()
            self.exchange.tied_replicas.collect()
        return self._end()

    def evaluate(self, instructions: Sequence[Instruction], batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The loss in eval mode; gathers what it needs and keeps nothing."""
        self.evaluating = True
        self._begin(batches, RandomState(dropout=False))
        self.exchange.tied_replicas.send()
        self._play(instructions)
        self.exchange.tied_replicas.forget()
        return self._end()

    def abandon(self) -> None:
        """A step has not come to its end: the next one begins anew."""
        self.micro = []
        for part in self.parts:
            part.store.abandon()

    def _play(self, instructions: Sequence[Instruction]) -> None:
        staged = len(self.plan.stages) > 1
        for instruction in instructions:
            self.progress(self.exchange.told(instruction) if staged else instruction)
            try:
                with self._marked(instruction):
                    self._execute(instruction)
            except RunError:
                raise
            except Exception as error:
                if not staged or is_lost(error):
                    raise
                raise self.exchange.failure(instruction, error) from error
            if self.counts:
                self._count()

    def _marked(self, what: object) -> AbstractContextManager[object]:
        """A span of this name in the timeline of a profiler that records; `meshwright compare` reads it."""
        return record_function(f"meshwright {what}") if profiler_records() else nullcontext()

    def _begin(self, batches: Sequence[Mapping[str, Tensor]], random: RandomState) -> None:
        each, rows = self.plan.microbatch, self.batches.rows
        weights = self._weights(batches)
        self.micro = [
            MicroBatch(k, batch, weight, replace(random, first_row=k * each, rows=rows[k]), uses=self._uses())
            for k, (batch, weight) in enumerate(zip(batches, weights, strict=True))
        ]

    def _uses(self) -> Counter[str]:
        """How often each value is read before it goes; the list says so where segments run more than once."""
        return Counter() if self.plan.order and not self.evaluating else self.exchange.uses.copy()

    def _weights(self, batches: Sequence[Mapping[str, Tensor]]) -> list[float]:
        if not self.weigher.counts:
            return self.weigher.by_samples()
        last = self.parts[-1]
        found = None
        if last.stage.end == len(self.program.segments):
            with use_transport(last.transport):
                own = [self.batches.of_stage(last.stage.first, k, batch) for k, batch in enumerate(batches)]
                found = self.weigher.weights(own, self.buffers)
        return self.exchange.share_numbers(found, len(batches))

    def _end(self) -> Tensor:
        found = [(micro.loss, micro.weight) for micro in self.micro if micro.loss is not None]
        losses = [loss if weight == 1 else loss * weight for loss, weight in found]
        self.exchange.finish()
        for part in self.parts:
            part.store.end_step()
        total = None
        if losses:
            total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        self.micro = []
        return self.exchange.share_loss(total)

    def _execute(self, one: Instruction) -> None:
        if one.kind == "step":
            return
        index = one.segment
        assert index is not None
        if one.microbatch is None:
            self._parameters(one.kind, index)
            return
        micro = self.micro[one.microbatch]
        if micro.weight == 0:
            return
        if one.peer is not None:
            self.exchange.transfer(one, micro)
            return
        with use_transport(self.segments.part_of[index].transport):
            self._compute(one.kind, index, micro)

    def _compute(self, kind: str, index: int, micro: MicroBatch) -> None:
        if kind == "forward" and self.evaluating:
            self.segments.evaluate(index, micro)
        elif kind in self.calls:
            self.calls[kind](index, micro)
        else:
            self.segments.move(kind, index, micro)

    def _parameters(self, kind: str, index: int) -> None:
        part = self.segments.part_of[index]
        with use_transport(part.transport):
            if kind == "gather":
                self.exchange.tied_replicas.take(index)
                part.store.gather(index)
            elif kind == "free":
                part.store.free(self.program.segments[index].params)
            else:
                part.store.reduce(index)
                self.exchange.tied_replicas.give_back(index)

    def _counted(self) -> AbstractContextManager[None]:
        """Where bytes are counted: all that ops make, besides parameters; the batch and the buffers aside."""
        if not self.counts:
            return nullcontext()
        stored = [t for part in self.parts for n, t in part.store.locals.items() if n not in part.store.on_host]
        there = [tensor for part in self.parts for tensor in part.store.host_memory()]
        given = [tensor for micro in self.micro for tensor in micro.batch.values()]
        return self.live.counting(stored, [*given, *there, *self.buffers.values(), *self.segments.host.waiting()])

    def _count(self) -> None:
        self.live.note(local for part in self.parts for local in part.store.reduced_gradients())
        found = {storage(tensor): tensor for micro in self.micro for tensor in micro.tensors()}
        known = {storage(t) for part in self.parts for t in (*part.store.locals.values(), *part.store.copies.values())}
        known |= {storage(t) for micro in self.micro for t in micro.batch.values()}
        known |= {storage(t) for t in self.buffers.values()}
        own = sum(t.untyped_storage().nbytes() for place, t in found.items() if place not in known)
        self.held_bytes = max(self.held_bytes, own + self.exchange.bytes_under_way())
