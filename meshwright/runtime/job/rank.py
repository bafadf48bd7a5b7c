"""What `launch` starts on each rank: `python -m meshwright.runtime.job.rank MODULE ARGUMENTS...`.

The rank is tied to its launcher before anything slow is imported; then the module runs as if it had been named.
"""

from __future__ import annotations

import runpy
import sys

from meshwright.runtime.job.tether import begin

if __name__ == "__main__":
    begin()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
