"""A way of `bench/activation_memory.py` as the bench sees it: a process that is asked and answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from select import select
from typing import Any

from bench.activation_way import Way
from meshwright.plan import Plan


class Child:
    """A way's process; what it prints besides its answers goes to a file."""

    def __init__(self, way: Way, logs: Path) -> None:
        self.way = way
        self.log = (logs / f"{way.name.replace(' ', '_')}.log").open("w")
        command = [sys.executable, str(Path(__file__).with_name("activation_way.py")), way.text()]
        pipe = subprocess.PIPE
        # A whole model has many kernels to compile, one of ours few unless its segments differ; a thread is a process.
        many = way.name.startswith("compile") or (way.plan and len(Plan.load(way.plan).choices) > 8)
        threads = {"TORCHINDUCTOR_COMPILE_THREADS": "4" if many else "1"}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log, env=threads | os.environ)
        self.row: dict[str, Any] = {"rounds": []}
        self.rest = b""

    def ask(self, what: str = "turn") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next answer; None where there is none by then. One that ends without a word has failed."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while True:
            line, newline, after = self.rest.partition(b"\n")
            if newline:
                self.rest = after
                if line.startswith(b"@"):
                    return dict(json.loads(line[1:]))
                continue
            if not select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                return {"error": "it ended"}
            self.rest += read

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
