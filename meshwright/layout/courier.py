"""Work that waits for messages, done during compute: gloo says that a message is over only to whoever waits for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

LAST_S = 1.0
"""How long a courier that nobody needs any more is waited for. One that comes back from a native call while the
interpreter goes down would take the process with it."""


class Task:
    """Something to be done once: by a courier, or by whoever needs it before the courier has come to it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._free = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        if not self._free.acquire(blocking=False):
            return
        work, self._work = self._work, None
        assert work is not None
        try:
            work()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self) -> None:
        """Its error, if it had one, is raised here."""
        self.run()
        self._over.wait()
        if self._error is not None:
            raise self._error


class BackgroundWaiter:
    """A thread that takes tasks in the order in which they are given."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        thread = threading.Thread(target=_serve, args=(self._tasks,), name="courier", daemon=True)
        thread.start()
        weakref.finalize(self, _dismiss, self._tasks, thread)

    def take(self, task: Task) -> None:
        self._tasks.put(task)


def _serve(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # with all that it holds, while waiting for the next


def _dismiss(tasks: SimpleQueue[Task | None], thread: threading.Thread) -> None:
    tasks.put(None)
    if thread is not threading.current_thread():
        thread.join(LAST_S)
