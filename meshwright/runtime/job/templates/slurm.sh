#!/bin/bash
#SBATCH --job-name=meshwright
#SBATCH --nodes=<hosts>
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
<gpus>#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=meshwright-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
# Set --time, and --partition and --account where your cluster asks for them. Activate the environment that has
# meshwright before sbatch, or here; it and the plan lie where all hosts read them.
<use>set -euo pipefail
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MESHWRIGHT_KEY=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export HEAD MESHWRIGHT_KEY
queue_again() {
    echo "the time is nearly over: the ranks save and end, the job is queued again"
    scancel --signal=INT "$SLURM_JOB_ID"
    wait "$RANKS" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap queue_again USR1
srun <torchrun> <ranks> \
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$HEAD:<port>" \
    <words> "$@" &
RANKS=$!
wait "$RANKS"
