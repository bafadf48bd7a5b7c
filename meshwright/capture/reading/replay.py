"""Writing out again, for each layer that is alike, the ops that were traced for the first of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshwright.capture.program import Op, Ref, TensorType
from meshwright.capture.reading.alias import Memory
from meshwright.capture.tracing.opaque import Call
from meshwright.capture.tracing.repeat import AGAIN, BEGIN, NotAlikeError

Add = Callable[[Op, list[TensorType], list[str]], Op]


@dataclass(slots=True)
class _Body:
    """One traced layer: its ops, what stood for its arguments and results, the buffers it wrote."""

    path: str
    start: int
    arguments: list[str]
    versions: dict[str, int]
    ops: tuple[Op, ...] = ()
    results: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()


class Replay:
    """Reads the marks. `ops` grows while the graph is walked; `add` appends to it."""

    def __init__(self, ops: list[Op], memory: Memory, add: Add) -> None:
        self.ops, self.memory, self.add = ops, memory, add
        self.bodies: dict[int, _Body] = {}
        self.count = 0

    def read(self, call: Call, given: list[Any]) -> tuple[Ref, ...]:
        number, path = dict(call.kwargs)["about"]
        names = [leaf.name for leaf in given]
        if call.target == BEGIN:
            now = [self.memory.read(name) for name in names]
            self.bodies[number] = _Body(path, len(self.ops), now, dict(self.memory.version))
            return tuple(given)
        if call.target == AGAIN:
            return self._again(self.bodies[number], path, [self.memory.read(name) for name in names])
        self._end(self.bodies[number], names)
        return tuple(given)

    def _end(self, body: _Body, names: list[str]) -> None:
        memory = self.memory
        body.ops = tuple(self.ops[body.start :])
        body.results = tuple(memory.read(name) for name in names)
        changed = [root for root, version in memory.version.items() if body.versions.get(root, 0) != version]
        made = {value.name for op in body.ops for value in op.results}
        outside = [root for root in changed if root not in made and not root.startswith(f"{body.path}.")]
        shared = [name for name in names if memory.root(name) not in made]
        if outside or shared:
            raise NotAlikeError(f"{body.path} writes to or hands on what it was given")
        body.written = tuple((root, memory.read(root)) for root in changed if root not in made)

    def _again(self, body: _Body, path: str, arguments: list[str]) -> tuple[Ref, ...]:
        self.count += 1
        names = dict(zip(body.arguments, arguments, strict=True))
        if [names[name] for name in body.arguments] != arguments:
            raise NotAlikeError(f"{body.path} was given one value twice, {path} two")

        def moved(text: str) -> str:
            return path + text.removeprefix(body.path) if _inside(text, body.path) else text

        def leaf(arg: Any) -> Any:
            return Ref(names.get(arg.name) or moved(arg.name)) if isinstance(arg, Ref) else arg

        for op in body.ops:
            made = replace(op.map(leaf), results=(), module=moved(op.module))
            wanted = [f"{value.name}_{self.count}" for value in op.results]
            new = self.add(made, [value.type for value in op.results], wanted)
            names |= {old.name: value.name for old, value in zip(op.results, new.results, strict=True)}
        for buffer, value in body.written:
            self.memory.write(moved(buffer), names[value])
        return tuple(Ref(names.get(name) or moved(name)) for name in body.results)


def _inside(text: str, path: str) -> bool:
    return text == path or text.startswith(f"{path}.")
