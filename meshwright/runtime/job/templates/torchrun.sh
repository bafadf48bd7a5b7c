#!/bin/bash
<note>
set -euo pipefail
<check>exec <torchrun> <ranks> <where> \
    <words> "$@"
