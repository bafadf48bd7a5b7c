"""Scores of priced rows, by set: errors, rank correlation, out-of-memory labels, regret."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

Row = dict[str, str]
GROUP = ("params_B", "layers", "hidden", "vocab", "seq", "gpu", "num_gpus", "global_batch", "precision", "attention")
"""What rows have in common that a planner would choose among."""
LEAST_RANKED, LEAST_MFU = 10, 0.05


@dataclass(frozen=True)
class Scored:
    """A row that was priced. fits: whether the predicted peak is within the device's memory."""

    row: Row
    step_s: float
    peak_bytes: float
    fits: bool

    @property
    def published_s(self) -> float | None:
        text = self.row.get("step_time_s") or ""
        return float(text) if text and (self.row.get("status") or "ok") == "ok" else None

    @property
    def error(self) -> float | None:
        return None if self.published_s is None else self.step_s / self.published_s - 1.0

    @property
    def memory_error(self) -> float | None:
        text = self.row.get("peak_mem_GB") or ""
        return self.peak_bytes / (float(text) * 1e9) - 1.0 if text else None

    @property
    def flagged(self) -> bool:
        return self.row.get("flag") == "mfu_low"

    @property
    def mfu(self) -> float:
        return float(self.row.get("mfu") or 1.0)


def scores(
    found: Sequence[Scored], not_modelled: Sequence[str], impossible: Sequence[str] = (), unread: int = 0
) -> dict[str, Any]:
    """Of one set; unread: how many of `not_modelled` are whole tables, which are no rows. Rows that the table flags as
    mfu_low (latency and jitter, by its notes) are not in errors of time; regrets are given without them too, and of
    the groups that rank correlations are taken of (`ranked`)."""
    timed = [one for one in found if one.error is not None and not one.flagged]
    errors = [one.error for one in timed if one.error is not None]
    busy = [one.error for one in timed if one.error is not None and one.mfu > 0.1]
    memory = [one.memory_error for one in found if one.memory_error is not None]
    labelled = [one for one in found if one.row.get("status") in ("ok", "oom", "crash")]
    right = [float(one.fits == (one.row["status"] == "ok")) for one in labelled] + [1.0] * len(impossible)
    failed = impossible or any(one.row.get("status") != "ok" for one in labelled)
    regrets = _regrets(found)
    ranks = _rank_correlations(found)
    return {
        "rows": len(found) + len(not_modelled) - unread + len(impossible),
        "scored_rows": len(found) + len(impossible),
        "timed_rows": len(errors),
        "mean_abs_error": _mean([abs(error) for error in errors]),
        "bias": _mean(errors),
        "mean_abs_error_mfu_over_0.1": _mean([abs(error) for error in busy]),
        "rank_correlation": median(ranks) if ranks else _rank_of_all(timed),
        "worst_rank_correlation": min(ranks, default=None),
        "oom_agreement": _mean(right) if failed else None,
        "median_regret": median(regrets) if regrets else None,
        "worst_regret": max(regrets, default=None),
        "worst_regret_unflagged": max(_regrets([one for one in found if not one.flagged]), default=None),
        "worst_regret_ranked": max(_regrets(found, LEAST_RANKED, LEAST_MFU), default=None),
        "memory_error": _mean([abs(error) for error in memory]),
        "memory_bias": _mean(memory),
        "not_modelled": list(not_modelled),
        "impossible": list(impossible),
        "steps": [[one.published_s, one.step_s] for one in timed],
        "memory": [
            [float(one.row["peak_mem_GB"]), one.peak_bytes / 1e9] for one in found if one.row.get("peak_mem_GB")
        ],
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _groups(found: Sequence[Scored]) -> list[list[Scored]]:
    groups: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for one in found:
        if one.published_s is not None:
            groups[tuple(one.row.get(name) or "" for name in GROUP)].append(one)
    return list(groups.values())


def _regrets(found: Sequence[Scored], least: int = 2, mfu: float = 0.0) -> list[float]:
    """In published time, how much slower the row is that we would choose than the fastest of its group; of groups with
    at least so many rows above this MFU."""
    regrets = []
    for group in _groups([one for one in found if one.mfu > mfu]):
        if len(group) >= least:
            chosen = min([one for one in group if one.fits] or group, key=lambda one: one.step_s)
            regrets.append((chosen.published_s or 0.0) / min(one.published_s or 0.0 for one in group) - 1.0)
    return regrets


def _rank_correlations(found: Sequence[Scored]) -> list[float]:
    return [
        spearman([one.step_s for one in group], [one.published_s or 0.0 for one in group])
        for group in _groups([one for one in found if one.mfu > LEAST_MFU])
        if len(group) >= LEAST_RANKED
    ]


def _rank_of_all(timed: Sequence[Scored]) -> float | None:
    """Of a set without such groups: steps of all its rows."""
    if len(timed) < 3:
        return None
    return spearman([one.step_s for one in timed], [one.published_s or 0.0 for one in timed])


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; equal values have the mean of their ranks."""
    a, b = _ranks(first), _ranks(second)
    mean_a, mean_b = fmean(a), fmean(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return both / spread**0.5 if spread else 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    found, place = [0.0] * len(values), 0
    while place < len(order):
        end = place
        while end < len(order) and values[order[end]] == values[order[place]]:
            end += 1
        for i in order[place:end]:
            found[i] = (place + end - 1) / 2
        place = end
    return found
