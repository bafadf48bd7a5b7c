"""A lock on a folder of checkpoints: one job at a time writes to it, and another is told which.

The kernel lets go of it when the process ends, however that happens.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from meshwright.errors import RunError

LOCK = ".lock"
_HELD: dict[Path, tuple[int, bool]] = {}
"""By folder, the open file, and whether it is held for as long as the job runs."""


def take(folder: Path, *, for_job: bool = False) -> None:
    """Lock a folder for this process, for one save or until it ends; RunError where another has it."""
    root = folder.resolve()
    if root in _HELD:
        _HELD[root] = (_HELD[root][0], _HELD[root][1] or for_job)
        return
    root.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise RunError(
                f"{folder} is in use by {who}", "a folder that no other job saves to", "wait for it, or name another"
            ) from None
        if _is(root / LOCK, handle):
            break
        os.close(handle)  # whoever had it has removed it since
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    _HELD[root] = (handle, for_job)


def release(folder: Path) -> None:
    """Unless the job holds it."""
    root = folder.resolve()
    handle, for_job = _HELD.get(root, (-1, True))
    if not for_job:
        del _HELD[root]
        (root / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _is(path: Path, handle: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False
