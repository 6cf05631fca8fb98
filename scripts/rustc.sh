#!/usr/bin/env bash
# The compiler of `make test`: cargo calls it in the place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER).
#
# clippy-driver compiles as rustc does and lints meanwhile, and the docs of a crate are made from the dependencies that it was
# just compiled with. Lints, docs and tests then need one compilation of 500 crates, where `cargo clippy`, `cargo doc` and
# `cargo test` need three.
set -euo pipefail

clippy-driver "$@"

# What rustdoc needs to know of it. The first argument is rustc itself.
is_test='' name='' kind=''
arguments=()
shift
while (($#)); do
    case $1 in
        --test) is_test=yes ;;
        --crate-name) name=$2; arguments+=("$1" "$2"); shift ;;
        --crate-type) kind=$2; arguments+=("$1" "$2"); shift ;;
        --extern | --cfg | --check-cfg | -L) arguments+=("$1" "$2"); shift ;;
        --edition=*) arguments+=("$1") ;;
        --out-dir) folder=$2; shift ;;
        -C | --json | --error-format | --emit | --diagnostic-width) shift ;;
        *.rs) source=$1; arguments+=("$1") ;;
    esac
    shift
done
# Tests and benchmarks have no readers from outside.
case $is_test:$kind:${source:-} in
    :lib:* | :bin:src/main.rs) ;;
    *) exit 0 ;;
esac
exec rustdoc "${arguments[@]}" --document-private-items -D warnings --out-dir "$folder/../docs/$name" >&2
