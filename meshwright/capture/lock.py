"""One thread of a process captures or plans at a time.

Capture replaces functions of torch and of model libraries for a while, and planning remembers what it has found in
caches that all threads see; others wait.
"""

from __future__ import annotations

from threading import RLock

PLANNING = RLock()
