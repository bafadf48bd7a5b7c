"""The pictures of docs/concepts.md: `python docs/pictures.py` writes docs/pictures/*.svg; a test holds them to it.

They are drawn from data: the pipeline's from the schedule that plans run. Light and dark.
"""

from __future__ import annotations

from pathlib import Path

from meshwright.schedule import ORDERS, lists, pipeline

FOLDER = Path(__file__).parent / "pictures"
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2937}.small{font-size:11px}.box{fill:none;stroke:#9ca3af}
.w{fill:#2563eb}.g{fill:#d97706}.o{fill:#7c3aed}.a{fill:#059669}.none{fill:#9ca3af33}.on{fill:#fff}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.w{fill:#60a5fa}.g{fill:#fbbf24}.o{fill:#a78bfa}.a{fill:#34d399}
.on{fill:#111}}"""
Shapes = list[str]


def rect(x: float, y: float, wide: float, high: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="2"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def svg(wide: int, high: int, about: str, shapes: Shapes) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img">'
    return "\n".join([head, f"<title>{about}</title>", f"<style>{STYLE}</style>", *shapes, "</svg>\n"])


def recipes() -> str:
    """What each of four devices holds between steps and works on, by recipe. Parts are of four."""
    rows = [
        ("data parallel (DDP)", {"w": "all", "o": "all", "a": "rows"}),
        ("ZeRO-1", {"w": "all", "o": "part", "a": "rows"}),
        ("FSDP (ZeRO-3)", {"w": "part", "o": "part", "a": "rows"}),
        ("tensor parallel", {"w": "part", "o": "part", "a": "columns"}),
        ("pipeline parallel", {"w": "layer", "o": "layer", "a": "layers"}),
    ]
    shapes = [text(190 + 130 * device, 20, f"device {device}", anchor="start") for device in range(4)]
    for row, (name, kinds) in enumerate(rows):
        top = 36 + 62 * row
        shapes.append(text(8, top + 28, name))
        for device in range(4):
            for place, kind in enumerate("woa"):
                shapes += _tile(190 + 130 * device + 38 * place, top, kind, kinds[kind], device)
    names = {"w": "weights", "o": "optimizer state", "a": "work: samples down, layers across"}
    for place, kind in enumerate("woa"):
        shapes += [rect(190 + 150 * place, 356, 12, 12, kind), text(208 + 150 * place, 367, names[kind], "small")]
    about = "What each of four devices stores and computes under DDP, ZeRO-1, FSDP, tensor and pipeline parallelism"
    return svg(720, 380, about, shapes)


def _tile(x: float, y: float, kind: str, how: str, device: int) -> Shapes:
    """State: four layers from top to bottom. Work: samples from top to bottom, four layers from left to right."""
    frame = [rect(x, y, 32, 48, "none")]
    if how == "all":
        return [rect(x, y, 32, 48, kind)]
    if how == "columns":
        return [*frame, *(rect(x + 8 * layer + 2 * device, y, 2, 48, kind) for layer in range(4))]
    if how == "layers":
        return [*frame, rect(x + 8 * device, y, 8, 48, kind)]
    if how == "part":
        return [*frame, *(rect(x, y + 12 * layer + 3 * device, 32, 3, kind) for layer in range(4))]
    return [*frame, rect(x, y + 12 * device, 32, 12, kind)]


def layouts() -> str:
    """A matrix on two devices in each state."""
    states = [
        ("S(0)", "sharded on dim 0"),
        ("S(1)", "sharded on dim 1"),
        ("R, I", "replicated"),
        ("P", "partial sum, a + b"),
    ]
    shapes: Shapes = []
    for place, (letters, words) in enumerate(states):
        left = 16 + 176 * place
        shapes.append(text(left, 18, f"{letters}: {words}"))
        for device in range(2):
            x, y = left + 78 * device, 30
            shapes.append(rect(x, y, 64, 64, "none"))
            if letters == "S(0)":
                shapes.append(rect(x, y + 32 * device, 64, 32, "w"))
            elif letters == "S(1)":
                shapes.append(rect(x + 32 * device, y, 32, 64, "w"))
            elif letters == "P":
                shapes += [rect(x, y, 64, 64, "g"), text(x + 32, y + 38, "b" if device else "a", "on", "middle")]
            else:
                shapes.append(rect(x, y, 64, 64, "w"))
            shapes.append(text(x, 112, f"device {device}", "small"))
    return svg(
        720, 124, "A matrix on two devices: sharded by rows, sharded by columns, replicated, a partial sum", shapes
    )


def schedule(name: str = "1f1b", stages: int = 4, microbatches: int = 6) -> str:
    """Who computes what when: a forward takes one unit, a backward two; what it waits for decides when it starts."""
    made = pipeline(list(range(1, stages + 1)), microbatches=microbatches)
    spans = _played([list(one) for one in lists(made, ORDERS[name](made))])
    end = max(start + wide for _, _, _, start, wide in spans)
    unit = 600 / end
    shapes = [text(8, 44 + 30 * stage, f"stage {stage}") for stage in range(stages)]
    shapes += [rect(70, 28 + 30 * stage, 600, 24, "none") for stage in range(stages)]
    for stage, kind, microbatch, start, wide in spans:
        x = 70 + unit * start
        shapes.append(rect(x + 0.5, 28 + 30 * stage, unit * wide - 1, 24, "w" if kind == "forward" else "g"))
        shapes.append(text(x + unit * wide / 2, 45 + 30 * stage, str(microbatch), "on small", "middle"))
    below = 40 + 30 * stages
    for place, (kind, words) in enumerate((("w", "forward"), ("g", "backward"), ("none", "idle: the bubble"))):
        shapes += [rect(70 + 120 * place, below, 12, 12, kind), text(88 + 120 * place, below + 11, words, "small")]
    return svg(720, below + 24, f"{stages} stages, {microbatches} micro-batches, one forward one backward", shapes)


def _played(stages: list[list[object]]) -> list[tuple[int, str, int, float, float]]:
    """Stage, kind, micro-batch, start and length of every forward and backward."""
    todo = [[one for one in listed if getattr(one, "kind", "") in ("forward", "backward")] for listed in stages]
    last, done, spans = len(todo) - 1, {}, []
    clocks = [0.0] * len(todo)
    while any(todo):
        for stage, listed in enumerate(todo):
            if not listed:
                continue
            kind, microbatch = getattr(listed[0], "kind"), getattr(listed[0], "microbatch")  # noqa: B009
            needs = [("forward", stage - 1)] if kind == "forward" else [("forward", stage), ("backward", stage + 1)]
            needed = [(what, place, microbatch) for what, place in needs if 0 <= place <= last]
            if all(key in done for key in needed):
                start = max([clocks[stage], *(done[key] for key in needed)])
                wide = 1.0 if kind == "forward" else 2.0
                clocks[stage] = done[kind, stage, microbatch] = start + wide
                spans.append((stage, kind, microbatch, start, wide))
                listed.pop(0)
    return spans


def memory() -> str:
    """Bytes over a step of eight layers: kept for backward, or recomputed from what enters each layer."""
    shapes: Shapes = []
    for place, (name, kept) in enumerate((("every activation is kept", 1.0), ("activation checkpointing", 0.25))):
        left, floor = 16 + 360 * place, 150.0
        shapes += [
            text(left, 18, name),
            rect(left, floor - 40, 320, 40, "w"),
            text(left + 6, floor - 16, "weights, optimizer state", "on"),
        ]
        for moment in range(16):
            layer = moment if moment < 8 else 15 - moment
            held = 10 * kept * (layer + 1) + (10 * (1 - kept) if moment >= 8 else 0)
            shapes.append(rect(left + 20 * moment, floor - 40 - held, 20, held, "a"))
        shapes += [text(left, floor + 16, "forward", "small"), text(left + 160, floor + 16, "backward", "small")]
    return svg(720, 176, "Memory over a step, with and without activation checkpointing", shapes)


PICTURES = {"recipes": recipes, "layouts": layouts, "schedule": schedule, "memory": memory}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
