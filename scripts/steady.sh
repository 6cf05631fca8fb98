#!/usr/bin/env bash
# Runs the tests again and again with half of this machine's processor time and cold caches, and says which failed.
#
#   RUNS=10 scripts/steady.sh [FILTER]
#
# FILTER is an expression of cargo-nextest, such as 'test(/stream/)'; without it all tests run. As root a control group gives
# half of the time, in slices, so that processes stand still for moments; else as many busy loops as processors compete.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${RUNS:-10}
filter=${1:-${FILTER:-all()}}
folder=target/steady
mkdir -p "$folder"
group='' competitors=()

# Puts this process and what it starts into a group that gets half of the time.
halve() {
    local share=$(($(nproc) * 50000)) period=100000 name=otela-steady-$$
    [[ $EUID == 0 ]] || return 1
    if [[ -w /sys/fs/cgroup/cpu/cgroup.procs ]]; then
        group=/sys/fs/cgroup/cpu/$name
        mkdir "$group" || return 1
        echo $period >"$group/cpu.cfs_period_us" && echo "$share" >"$group/cpu.cfs_quota_us" || return 1
    elif grep -qw cpu /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
        grep -qw cpu /sys/fs/cgroup/cgroup.subtree_control || echo +cpu >/sys/fs/cgroup/cgroup.subtree_control || return 1
        group=/sys/fs/cgroup/$name
        mkdir "$group" || return 1
        echo "$share $period" >"$group/cpu.max" || return 1
    else
        return 1
    fi
    echo $$ >"$group/cgroup.procs"
}

compete() {
    local n
    for ((n = 0; n < $(nproc); n++)); do
        (while :; do :; done) &
        competitors+=($!)
    done
}

# shellcheck disable=SC2329 # called by the trap
finish() {
    ((${#competitors[@]} == 0)) || kill "${competitors[@]}" 2>/dev/null || true
    [[ -n $group ]] || return 0
    echo $$ >"$(dirname "$group")/cgroup.procs"
    rmdir "$group" 2>/dev/null || true
}

# Compiled at full speed: that is not what is tried here.
make --no-print-directory build
trap finish EXIT
if halve; then how="a control group with half of $(nproc) processors"; else
    compete
    how="$(nproc) busy loops beside it"
fi
echo "steady: $runs runs, $how" >&2

table=() failed=0
for ((run = 1; run <= runs; run++)); do
    if [[ $EUID == 0 ]]; then
        sync
        echo 3 >/proc/sys/vm/drop_caches || true
    fi
    start=$SECONDS log=$folder/run-$run.log
    status=passed
    make --no-print-directory tests FILTER="$filter" >"$log" 2>&1 || status=FAILED failed=$((failed + 1))
    summary=$(grep -aE 'Summary|^test result' "$log" | tail -n 1 | sed -E 's/.*: *//' || true)
    table+=("$(printf '%3d  %-6s  %3d:%02d  %s' "$run" "$status" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)) "$summary")")
    echo "steady: ${table[-1]}" >&2
    [[ $status == passed ]] || grep -aE '^ +(FAIL|TIMEOUT|SIGABRT|SIGSEGV|LEAK-FAIL) ' "$log" | sort -u >&2 || true
done
printf 'run  result    time  what\n'
printf '%s\n' "${table[@]}"
echo "$failed of $runs runs failed; their output is in $folder"
((failed == 0))
