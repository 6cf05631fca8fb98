#!/usr/bin/env bash
# Checks deploy/: schemas and house rules of the Kubernetes files, the Dockerfiles, the systemd units. Nothing is started or
# asked over the network. Whether every flag and variable named there exists is a test: tests/mesh/manifests.rs.
#
# The tools are scripts/lab.sh's part `manifests`, and systemd-analyze. What cannot be checked is said in one line; with
# CI=true it is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=${OTELA_LAB:-$(scripts/lab.sh --where)}/manifests/bin
# The oldest Kubernetes that has all that is used (a preStop that sleeps), and the newest with a schema.
releases=(1.30 1.37)
failed=0

not_checked() {
    if [[ ${CI:-} == true ]]; then
        echo "manifests: $2" >&2
        failed=1
    else
        echo "NOT CHECKED: $1, for $2" >&2
    fi
}

# Says which check has failed, and goes on to the next.
check() {
    "$@" || { echo "manifests: failed: $*" >&2; failed=1; }
}

validate() {
    local release
    for release in "${releases[@]}"; do
        check "$tools/kubernetes-validate" --quiet --strict -k "$release" "$@"
    done
}

kubernetes() {
    local files rendered folder
    mapfile -t files < <(find deploy/kubernetes -name '*.yaml' | sort)
    check "$tools/yamllint" --strict -c deploy/yamllint.yaml "${files[@]}" deploy/yamllint.yaml
    mapfile -t files < <(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml | sort)
    validate "${files[@]}"
    check "$tools/python" deploy/rules.py deploy/kubernetes
    if ! command -v kustomize >/dev/null && ! command -v kubectl >/dev/null; then
        # Not even in CI an error: Debian's kubectl is too old to render them, and there is no package of kustomize.
        echo "NOT CHECKED: what kustomize makes of deploy/kubernetes, for neither kustomize nor kubectl is there" >&2
        return
    fi
    rendered=$(mktemp)
    # The local is gone when the trap runs.
    # shellcheck disable=SC2064
    trap "rm -f '$rendered'" EXIT
    while read -r folder; do
        folder=$(dirname "$folder")
        if command -v kustomize >/dev/null; then check kustomize build "$folder"; else check kubectl kustomize "$folder"; fi >"$rendered"
        validate "$rendered"
    done < <(grep -rlx 'kind: Kustomization' deploy/kubernetes --include=kustomization.yaml | sort)
}

units() {
    local home said
    home=$(mktemp -d)
    mkdir -p "$home/run" "$home/.local/bin"
    # That the program is there is not a unit's matter.
    ln -s /bin/true "$home/.local/bin/otela"
    # A key that systemd does not know is only told of, and ends with 0.
    said=$(HOME=$home XDG_RUNTIME_DIR=$home/run SYSTEMD_COLORS=0 systemd-analyze verify --user --man=no deploy/systemd/*.service 2>&1) ||
        said="${said:-systemd-analyze has failed}"
    rm -rf "$home"
    if [[ -n $said ]]; then
        printf '%s\nmanifests: failed: systemd-analyze verify --user deploy/systemd/*.service\n' "$said" >&2
        failed=1
    fi
}

if [[ -x $tools/kubernetes-validate && -x $tools/yamllint && -x $tools/hadolint ]]; then
    kubernetes
    check "$tools/hadolint" --no-color deploy/docker/Dockerfile deploy/docker/worker.Dockerfile
else
    not_checked "deploy/kubernetes and deploy/docker" "the lab's part manifests is missing (make lab)"
fi
if command -v systemd-analyze >/dev/null; then
    units
else
    not_checked deploy/systemd "systemd-analyze is missing (apt-get install systemd)"
fi
exit "$failed"
