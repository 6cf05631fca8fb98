#!/bin/bash
# Jobs one after another, so that a model is served for longer than a job may last: each submits its successor, which starts
# so long before it takes no new requests that it serves by then.
#
#   scripts/slurm/chain.sh --jobs 14 --overlap 30m qwen --gpus=1 --time=12:00:00 scripts/slurm/worker.sbatch vllm serve Qwen/Qwen3-8B
#
#   --jobs N        how many jobs in all (default 14: a week of half days)
#   --overlap TIME  so long before one takes no new requests (OTELA_START_DRAIN_BEFORE_END, 2m, before its end) the next
#                   starts: what the queue and the engine take to begin (default 30m); at most half of a job's time
#   qwen            a name for the chain: its jobs are called otela-chain-qwen
#
# There are never more than two jobs of a chain at a time. It ends after the last job, or when you say so:
#   scancel --name=otela-chain-qwen
# The engine's work is worker.sbatch's, or of any script that calls submit_successor of lib.sh.

set -euo pipefail
# shellcheck source=scripts/slurm/lib.sh
source "$(dirname "$0")/lib.sh"

usage="chain.sh [--jobs N] [--overlap TIME] NAME [SBATCH OPTIONS] scripts/slurm/worker.sbatch COMMAND..."
jobs=14 overlap=30m
while [[ ${1:-} == --* ]]; do
    case $1 in
        --jobs) jobs=${2:-} ;;
        --overlap) overlap=${2:-} ;;
        *) die "$1 comes after the name: $usage" ;;
    esac
    shift 2 || die "$usage"
done
(($# >= 2)) || die "$usage"
[[ $1 =~ ^[A-Za-z0-9_.-]+$ && ! -e $1 ]] || die "the chain needs a name, and $1 is none: $usage"
for word in "$@"; do
    [[ $word != --jobs && $word != --overlap ]] || die "$word comes before the name: $usage"
    [[ $word == -* || $word == "$1" ]] || break
done
need_bootstrap
name=otela-chain-$1
shift
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs $jobs: a number from 1 on"
[[ $overlap =~ ^([1-9][0-9]*)([smh])$ ]] || die "--overlap $overlap: for example 90s, 30m or 2h"
case ${BASH_REMATCH[2]} in s) unit=1 ;; m) unit=60 ;; h) unit=3600 ;; esac

running=$(squeue --me --noheader --name="$name" --format=%A) || die "squeue does not answer: try again"
[[ -z $running ]] || die "a chain of this name runs already: job ${running//$'\n'/, }; scancel --name=$name ends it"

OTELA_CHAIN_OVERLAP=$((BASH_REMATCH[1] * unit)) OTELA_CHAIN_LEFT=$((jobs - 1)) OTELA_CHAIN_SUBMIT=$(printf '%q ' "$@") \
    sbatch --job-name="$name" "$@"
