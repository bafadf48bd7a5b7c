"""The order of a pipeline's tasks, written as torch.distributed.pipelining writes it.

`0F3` is run 0, forward, micro-batch 3. F is a forward, B a whole backward, I and W its input and weight halves. A Plan
stores one line for each physical stage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError, counted

LETTERS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
_KINDS = {letter: kind for kind, letter in LETTERS.items()}
_TASK = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")
UNDO = "undo the edit, or plan again"


@dataclass(frozen=True, slots=True)
class Task:
    """kind: forward, backward, backward_input or backward_weight. run: position in the pipeline's runs."""

    kind: str
    run: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.run}{LETTERS[self.kind]}{self.microbatch}"


Order = tuple[tuple[Task, ...], ...]
"""The tasks of each stage."""


def show_tasks(order: Order) -> tuple[str, ...]:
    """A line for each stage."""
    return tuple(" ".join(map(str, tasks)) for tasks in order)


def parse_tasks(lines: Iterable[str]) -> Order:
    """The inverse of `show_tasks`."""
    return tuple(tuple(_task(word, number) for word in line.split()) for number, line in enumerate(lines))


def _task(word: str, line: int) -> Task:
    match = _TASK.fullmatch(word)
    if match is None:
        raise PlanError(f"tasks[{line}] has {word!r}", "tasks such as 0F3: run, one of F B I W, micro-batch", UNDO)
    return Task(_KINDS[match[2]], int(match[1]), int(match[3]))


def check_tasks(lines: Sequence[str], runs_of: Sequence[Sequence[int]], microbatches: int) -> Order:
    """The order, where each stage computes each of its runs once for every micro-batch. runs_of: of each stage."""
    order = parse_tasks(lines)
    if len(order) != len(runs_of):
        raise PlanError(f"tasks of {counted(len(order), 'stage')}", f"a line for each of {len(runs_of)} stages", UNDO)
    for number, (tasks, runs) in enumerate(zip(order, runs_of, strict=True)):
        counts = Counter((task.kind, task.run, task.microbatch) for task in tasks)
        wanted = Counter[tuple[str, int, int]]()
        for run in runs:
            for microbatch in range(microbatches):
                whole = ("backward", run, microbatch) in counts
                kinds = ("forward", "backward") if whole else ("forward", "backward_input", "backward_weight")
                wanted.update((kind, run, microbatch) for kind in kinds)
        if counts != wanted:
            wrong = next(iter((wanted - counts) or (counts - wanted)))
            given = f"tasks[{number}] has {Task(*wrong)} {counts[wrong]} times"
            raise PlanError(given, f"{wanted[wrong]}: every run forward and backward once a micro-batch", UNDO)
    return order
