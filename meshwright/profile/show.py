"""A Profile as tables for people: by layer, the peak in its parts, the largest saved values."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from meshwright.profile.profile import Profile, SegmentProfile

WIDTH = 110
"""Columns that the tables need; a narrower terminal wraps them."""


def show(
    profile: Profile,
    model: str,
    notes: Iterable[str] = (),
    warnings: Iterable[str] = (),
    console: Console | None = None,
) -> None:
    out = console or Console(highlight=False, emoji=False, width=max(WIDTH, Console().width))
    out.print(
        f"{model}: batch {profile.batch}, {profile.precision}, {profile.optimizer} ({profile.implementation}), "
        f"{profile.device} kernels",
        markup=False,
    )
    out.print(
        f"{show_count(profile.params).strip()} parameters, {show_count(profile.forward_flops)}FLOP forward, "
        f"{show_count(profile.step_flops)}FLOP a step, {profile.distinct_segments} distinct layers"
    )
    for warning in warnings:
        out.print(f"warning: {warning}", markup=False)
    for note in notes:
        out.print(f"note: {note}", markup=False)
    out.print(_segments(profile))
    out.print(f"peak {show_bytes(profile.peak_bytes)} in {profile.peak}", markup=False)
    out.print(_parts(profile))
    out.print(_largest(profile))


def show_count(number: int) -> str:
    """`1.56 T`: three figures and a decimal prefix."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number} "


def show_bytes(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=True)
    return table


def _segments(profile: Profile) -> Table:
    table = _table(
        "by layer", "layer", "count", "ops", "forward FLOP", "backward", "bytes moved", "activations", "buffers"
    )
    rows = [*([profile.prologue] if profile.prologue.ops else []), *profile.segments]
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: SegmentProfile) -> tuple[str, ...]:
    return (
        row.name,
        str(row.count),
        str(row.ops),
        show_count(row.forward_flops),
        show_count(row.backward_flops),
        show_bytes(row.forward_bytes + row.backward_bytes),
        show_bytes(row.saved_bytes),
        show_bytes(row.transient_bytes),
    )


def _parts(profile: Profile) -> Table:
    table = _table("at the peak", "what", "bytes", "share")
    for what, size in profile.peak.parts:
        if size:
            table.add_row(what, show_bytes(size), f"{100 * size / profile.peak_bytes:.1f} %")
    return table


def _largest(profile: Profile) -> Table:
    table = _table("largest activations kept for backward", "value", "layer", "count", "each", "all", left=2)
    for segment, value, count in profile.largest_saved():
        name = f"{value.name} (its statistics)" if value.auxiliary else value.name
        table.add_row(name, segment, str(count), show_bytes(value.bytes), show_bytes(value.bytes * count))
    return table
