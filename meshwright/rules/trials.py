"""What trying an op on small tensors finds: the functions that run where they may do harm (see `isolated`)."""

from __future__ import annotations

from meshwright.rules.adopt import adoptions
from meshwright.rules.discover import experiments
from meshwright.rules.findings import Proven, prove_findings, sample
from meshwright.rules.rule import Call, Tier


def tried(call: Call) -> tuple[Proven, Tier] | None:
    """Ways to shard the op that are proven, and whether DTensor knew one of them; None where it runs on no example."""
    small = sample(call)
    if small is None:
        return None
    theirs = set(adoptions(small))
    found = sorted(dict.fromkeys((*theirs, *experiments(small))), key=lambda one: (one.carries, str(one)))
    proven = prove_findings(small, found)
    return proven, "discovered" if theirs.isdisjoint(proven.findings) else "dtensor"


def tried_with_care(call: Call) -> tuple[Proven, Tier] | None:
    """The same of an op that ended the process where its operands did not fit: only what cuts dims of one size
    alike, and nobody else is asked."""
    small = sample(call)
    return None if small is None else (prove_findings(small, list(experiments(small, alike=True))), "discovered")
