#!/usr/bin/env bash
# Makes the targets that it is given, one after the other, and says at its end what each took.
#
#   scripts/steps.sh fmt clippy tests
#
# The summary names the ten slowest tests too, and the time of a fixed piece of work, by which the times of two machines are
# compared. More than BUDGET_MINUTES (35) is told in a line; it is no failure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

budget=${BUDGET_MINUTES:-35}
times=()
# Steps before `make`, which their caller has timed itself: "NAME=SECONDS ...".
for done in ${STEPS_BEFORE:-}; do
    times+=("${done%=*} ${done#*=}")
done

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# The times in what nextest has written, longest first. Runs of one test each are named by it, and by its binary.
slowest() {
    local results=target/nextest/${NEXTEST_PROFILE:-default}/junit.xml
    [[ -s $results && $results -nt $began ]] || return 0
    echo "slowest tests, in seconds:"
    grep -o '<testcase [^>]*' "$results" |
        sed -E 's/.* name="([^"]*)" classname="([^"]*)".* time="([0-9.]+)".*/\3 \2 \1/' |
        sort -rn | head -n 10 | sed 's/^/  /'
}

summary() {
    local step total=0
    echo
    echo "steps, in minutes:"
    for step in "${times[@]}"; do
        printf '  %-12s %s\n' "${step% *}" "$(minutes "${step#* }")"
        total=$((total + ${step#* }))
    done
    printf '  %-12s %s\n' total "$(minutes "$total")"
    slowest
    python3 scripts/control.py || echo "control: not measured, for python3 is missing"
    if ((total > budget * 60)); then
        echo "OVER BUDGET: $(minutes "$total") of $budget minutes. Move long forms of tests to \`make soak\`, or make this line worth it."
    fi
}

began=$(mktemp)
trap 'rm -f "$began"' EXIT
status=0
for step in "$@"; do
    start=$SECONDS
    "${MAKE:-make}" --no-print-directory "$step" || status=$?
    times+=("$step $((SECONDS - start))")
    ((status == 0)) || break
done
summary >&2
exit "$status"
