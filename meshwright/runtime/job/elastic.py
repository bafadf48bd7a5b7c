"""torchrun with one message: where a rank has said why it ended, torchrun's log, traceback and summary are left out.

`python -m meshwright.runtime.job.elastic` takes what torchrun takes; `meshwright launch` writes it into its scripts.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from meshwright.runtime.job.launch import LOST, ToldError, blamed
from meshwright.runtime.job.tether import INTERRUPTED
from meshwright.runtime.seal import KEY


def main() -> int:
    if "LOGLEVEL" not in os.environ:  # torchrun's own word for it
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("torch.distributed.elastic"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault(KEY, secrets.token_hex(16) if "--standalone" in sys.argv else "")
    try:
        torchrun()
    except SignalException as error:
        print(f"meshwright: ended by {error.sigval.name}", file=sys.stderr, flush=True)
        return INTERRUPTED
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        own = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}  # torchrun ends the others so
        fault = blamed(own or codes)
        if not isinstance(fault, ToldError) and set(own.values()) != {LOST}:  # else it was told, here or elsewhere
            print(f"meshwright: {fault}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
