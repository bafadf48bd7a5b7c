"""A plan in a notebook: the recommendation and a memory bar, as a few lines of HTML without script or style sheet."""

from __future__ import annotations

from html import escape

from meshwright.explain.recommend import limit_bytes, recommendation
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes

NEXT = (
    '<div style="font-size:12px;opacity:.75;margin-top:6px">why: <code>print(plan.explain())</code> &nbsp; with layers '
    'and known recipes: <code>plan.report("plan.html")</code> &nbsp; to train: '
    "<code>trainer = mw.parallelize(model, plan)</code></div>"
)
TONES = ("#5b7fbf", "#57a773", "#d9a441")


def small(plan: Plan) -> str:
    first, *rest = map(escape, recommendation(plan))
    lines = "".join(f'<div style="opacity:.75">{line}</div>' for line in rest)
    return (
        '<div style="font:14px/1.5 system-ui,sans-serif;max-width:760px;border:1px solid #8884;border-radius:8px;'
        f'padding:10px 14px"><b>{first}</b>{lines}{_bar(plan)}{NEXT}</div>'
    )


def _bar(plan: Plan) -> str:
    full = max(limit_bytes(plan), plan.predicted.peak_bytes, 1)
    spans, words = [], []
    for (name, size), tone in zip(plan.predicted.parts, TONES, strict=True):
        spans.append(f'<span style="width:{100 * size / full:.2f}%;background:{tone}"></span>')
        words.append(f'<span style="color:{tone}">&#9632;</span> {escape(name)} {show_bytes(size)}')
    return (
        '<div role="img" aria-label="memory against the limit" style="display:flex;height:12px;border-radius:6px;'
        f'overflow:hidden;background:#8883;margin:6px 0 2px">{"".join(spans)}</div>'
        f'<div style="font-size:12px;opacity:.75">{" &nbsp; ".join(words)}</div>'
    )
