#!/bin/bash
# One node of an engine over several, started by worker-multinode.sbatch through srun: fills in {rank}, {nodes} and {head}.

set -euo pipefail
# shellcheck source=scripts/slurm/lib.sh
source "$(dirname "$0")/lib.sh"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The name that the first node is reached by, where that differs from Slurm's.
head=${OTELA_HEAD:-$head}
words=()
for word in "$@"; do
    word=${word//'{rank}'/$SLURM_NODEID}
    word=${word//'{nodes}'/$SLURM_JOB_NUM_NODES}
    words+=("${word//'{head}'/$head}")
done
in_container "${words[@]}"
if ((SLURM_NODEID == 0)); then
    exec "$otela" start --process "${engine[@]}"
fi
read -ra others <<<"${OTELA_OTHERS:-}"
exec "${engine[@]}" ${others[@]+"${others[@]}"}
