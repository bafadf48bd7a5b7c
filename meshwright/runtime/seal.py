"""Messages in the job's store that only ranks of the job can have written: each carries a keyed hash.

The store answers whoever reaches its port. The key is handed to the ranks by whoever starts them, in the environment;
where it is not, messages go unsigned.
"""

from __future__ import annotations

import hmac
import os

KEY = "MESHWRIGHT_KEY"
_DIGITS = 32


def sealed(name: str, text: str) -> str:
    """A message for the store, under this name."""
    return _mark(name, text) + text


def opened(name: str, message: bytes) -> str | None:
    """What a message says; None where it was not written for this name by a rank of the job."""
    found = message.decode(errors="replace")
    mark, text = found[: _length()], found[_length() :]
    return text if hmac.compare_digest(mark.encode(), _mark(name, text).encode()) else None


def _length() -> int:
    return _DIGITS if os.environ.get(KEY) else 0


def _mark(name: str, text: str) -> str:
    key = os.environ.get(KEY)
    return hmac.new(key.encode(), f"{name}\0{text}".encode(), "sha256").hexdigest()[:_DIGITS] if key else ""
