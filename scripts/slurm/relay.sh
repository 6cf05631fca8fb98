#!/bin/bash
# A relay on a login node, in user space: it survives the logout. Jobs join through it, and are reached through it.
#
#   scripts/slurm/relay.sh start [FLAGS of otela relay]    starts it, or says that it runs; prints where it is
#   scripts/slurm/relay.sh stop | status | address
#
#   OTELA_RELAY_HOME   where its key, its log and its address are (default ~/.otela-relay); jobs may read the address there:
#                      export OTELA_PEER_BOOTSTRAP=$(cat ~/.otela-relay/address)
# Ask whether your site allows services on login nodes.

set -euo pipefail
# shellcheck source=scripts/slurm/lib.sh
source "$(dirname "$0")/lib.sh"

home=${OTELA_RELAY_HOME:-$HOME/.otela-relay}
name=$(hostname -s)

# The process, if it is one of ours and on this host: the home directory is every login node's.
running() {
    local pid
    pid=$(cat "$home/pid-$name" 2>/dev/null) || return 1
    [[ -r /proc/$pid/cmdline && $(tr '\0' ' ' <"/proc/$pid/cmdline") == *' relay '* ]] && echo "$pid"
}

start() {
    need_otela
    if running >/dev/null; then
        (($# == 0)) || echo "it runs already, with the flags that it was started with: stop it first for others" >&2
        cat "$home/address"
        return
    fi
    mkdir -p "$home"
    chmod 700 "$home"
    : >"$home/log-$name"
    setsid nohup "$otela" relay --key "$home/key-$name" "$@" >>"$home/log-$name" 2>&1 </dev/null &
    echo $! >"$home/pid-$name"
    local tries address
    for ((tries = 0; tries < 100; tries++)); do
        address=$(grep -oE 'join with --bootstrap [^ ]+' "$home/log-$name" | head -n 1 | cut -d' ' -f4) || true
        if [[ -n $address ]]; then
            echo "$address" | tee "$home/address"
            return
        fi
        running >/dev/null || break
        sleep 0.1
    done
    rm -f "$home/pid-$name"
    head -n 5 "$home/log-$name" >&2
    die "the relay did not start, see $home/log-$name"
}

case ${1:-} in
    start)
        shift
        start "$@"
        ;;
    stop)
        pid=$(running) || die "no relay of yours runs on $name"
        kill -TERM "$pid"
        while running >/dev/null; do sleep 0.1; done
        rm -f "$home/pid-$name" "$home/address"
        ;;
    status)
        pid=$(running) || die "no relay of yours runs on $name"
        echo "process $pid on $name, $(cat "$home/address")"
        ;;
    address)
        [[ -e $home/address ]] || die "no relay of yours was started, by $home"
        cat "$home/address"
        ;;
    *) die "start, stop, status or address" ;;
esac
