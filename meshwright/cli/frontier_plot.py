"""A time-memory curve as text and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from meshwright.cluster.device import Device
from meshwright.errors import PlanError
from meshwright.explain.memory_curve import Curve, Point
from meshwright.plan.units import show_bytes, show_enough, show_limit, show_seconds
from meshwright.planner.effort import HEADROOM
from meshwright.planner.memory.offload import has_host_link
from meshwright.planner.one_device import budget_bytes, room_bytes

WIDTH, HEIGHT, EDGE = 640, 400, 60


def knee(curve: Curve) -> Point:
    """Where more memory stops helping much: the point of ours farthest below the straight line between its ends."""
    return max(curve.ours, key=lambda point: -sum(_place(point, curve.ours)))


def table(
    curve: Curve, device: Device, limit_bytes: int | None = None, planned: Point | PlanError | None = None
) -> str:
    """Ours from most memory to least, then the others with what ours takes in no more memory. planned: what `plan`
    answers in the limit."""
    turn, base, room = knee(curve), curve.ours[0].step_s, device.limit_bytes(None, HEADROOM)
    here = planned if isinstance(planned, Point) else None
    ours = sorted({*curve.ours, *([here] if here else [])}, key=lambda point: (-point.peak_bytes, point.step_s))
    lines = [f"{'':>22} {'peak':>10} {'step':>10} {'slower':>7}"]
    for point in ours:
        words = [f"in {point.microbatches} micro-batches"] if point.microbatches > 1 else []
        words += ["knee: more memory helps little"] if point == turn and len(curve.ours) > 2 else []
        words += [f"the plan in {show_limit(limit_bytes)}"] if point == here and limit_bytes else []
        words += [f"does not fit: a device has {show_bytes(room)}"] if point.peak_bytes > room else []
        lines.append(_row(point, f"{point.step_s / base - 1:>7.1%}  {'; '.join(words)}".rstrip()))
    lines += [f"{planned.given}: {planned.expected}"] if isinstance(planned, PlanError) else []
    lines += _limits(min(point.peak_bytes for point in curve.ours), device, limit_bytes)
    lines.append(
        "others, in one micro-batch, as --pin recompute=keep|selective|full|sqrt|rotor runs them; ours within the same "
        "memory:"
    )
    for point in sorted(curve.others, key=lambda point: -point.peak_bytes):
        within = [one for one in ours if one.peak_bytes <= point.peak_bytes]
        best = min(within, key=lambda one: one.step_s, default=None)
        note = f"{point.step_s / base - 1:>7.1%}  " + (
            f"ours {show_seconds(best.step_s)}" if best else "ours: none so small"
        )
        note += "; does not fit" if point.peak_bytes > room else ""
        lines.append(_row(point, note))
    return "\n".join(lines)


def _limits(least: int, device: Device, limit_bytes: int | None) -> list[str]:
    """Where a limit has to be more than a peak, and what takes less memory than this curve."""
    lines, needed = [], budget_bytes(least, device)
    if needed > least:
        room = device.limit_bytes(room_bytes(limit_bytes, device))
        given = f"of {show_limit(limit_bytes)} a plan fills at most {show_bytes(room)}; " if limit_bytes else ""
        lines.append(
            f"a GPU's allocator may lose a part of a limit: {given}the least peak here, {show_bytes(least)}, takes "
            f"--memory {show_enough(needed)}"
        )
    if has_host_link(device):
        lines.append("with optimizer state and weights on the host less memory does: plan --pin offload=auto")
    return lines


def _row(point: Point, note: str) -> str:
    return f"{point.name:>22} {show_bytes(point.peak_bytes):>10} {show_seconds(point.step_s):>10} {note}"


def text_plot(curve: Curve, columns: int = 64, rows: int = 16) -> str:
    """Bytes to the right, seconds upward: `*` is ours, letters are the others."""
    points = [*curve.ours, *curve.others]
    grid = [[" "] * columns for _ in range(rows)]
    letters = []
    for index, point in enumerate(points):
        own = index < len(curve.ours)
        mark = "*" if own else chr(ord("a") + index - len(curve.ours))
        letters += [] if own else [f"{mark} {point.name}"]
        x, y = _place(point, points)
        grid[round((1 - y) * (rows - 1))][round(x * (columns - 1))] = mark
    low, high = (f(point.peak_bytes for point in points) for f in (min, max))
    edge = f"{show_bytes(low)}{'':>{max(1, columns - len(show_bytes(low)) - len(show_bytes(high)))}}{show_bytes(high)}"
    return "\n".join(["".join(row).rstrip() for row in grid] + ["-" * columns, edge, "* ours; " + ", ".join(letters)])


def _place(point: Point, points: Sequence[Point]) -> tuple[float, float]:
    bytes_, seconds = [one.peak_bytes for one in points], [one.step_s for one in points]
    x = (point.peak_bytes - min(bytes_)) / max(1, max(bytes_) - min(bytes_))
    return x, (point.step_s - min(seconds)) / (max(seconds) - min(seconds) or 1.0)


def svg(curve: Curve, title: str) -> str:
    points = [*curve.ours, *curve.others]

    def at(point: Point) -> tuple[float, float]:
        x, y = _place(point, points)
        return EDGE + x * (WIDTH - 2 * EDGE), HEIGHT - EDGE - y * (HEIGHT - 2 * EDGE)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, curve.ours))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{escape(title, quote=False)}</text>',
        f'<path d="M{EDGE} {EDGE / 2}V{HEIGHT - EDGE}H{WIDTH - EDGE / 2}" stroke="#888" fill="none"/>',
        f'<polyline points="{line}" stroke="#0a6" stroke-width="2" fill="none"/>',
    ]
    sizes, times = [point.peak_bytes for point in points], [point.step_s for point in points]
    for share in (0.0, 0.5, 1.0):
        x, y = EDGE + share * (WIDTH - 2 * EDGE), HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE)
        size = show_bytes(round(min(sizes) + share * (max(sizes) - min(sizes))))
        took = show_seconds(min(times) + share * (max(times) - min(times)))
        parts.append(f'<text x="{x}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{size}</text>')
        parts.append(f'<text x="{EDGE - 6}" y="{y + 4}" text-anchor="end">{took}</text>')
    for point in points:
        x, y = at(point)
        own = point.name == "ours"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{"#0a6" if own else "#c33"}"/>')
        if not own:
            parts.append(f'<text x="{x + 5:.1f}" y="{y - 5:.1f}">{escape(point.name, quote=False)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
