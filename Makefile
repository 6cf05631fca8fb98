# `make demo` and `make test` are the whole set-up on a Debian machine with a Rust toolchain and a C compiler.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

CARGO ?= cargo
# Under make -j cargo would look for a job server that recipes do not inherit.
cargo := env -u MAKEFLAGS -u MFLAGS $(CARGO)
# Which tests, as an expression of cargo-nextest: make tests FILTER='test(/stream/)'
FILTER ?= all()
# Arguments for demo and bench: make demo ARGS="--help"
ARGS ?=
# Which fuzz targets, and for how long each: make fuzz TARGET=entry SECONDS=600
TARGET ?= $(sort $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs))))
SECONDS ?= 60

export OTELA_LAB := $(shell scripts/lab.sh --where)
# Modules are compiled once, not by every process of a test; what is compiled stays in the lab, not beside the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(OTELA_LAB)/bytecode
# The tools of cargo may live in the lab; a system's own come first.
export PATH := $(PATH):$(OTELA_LAB)/nextest/bin:$(OTELA_LAB)/deny/bin:$(OTELA_LAB)/fuzz/bin

scripts := .ci/run $(wildcard scripts/*.sh scripts/*/*.sh scripts/*/*.sbatch)
# CI has it, or says so: plain `cargo test` runs all of a binary's tests in one process.
has_nextest := { $(cargo) nextest --version >/dev/null 2>&1 || { [ "$${CI:-}" = true ] && echo "cargo-nextest is missing: run scripts/lab.sh" >&2 && exit 1; }; }
# One compilation for lints, docs and tests; see scripts/rustc.sh.
checked := env -u RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/rustc.sh CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings $(cargo)
nextest := $(checked) nextest run --locked --workspace
plain_test := $(checked) test --locked --workspace --lib --bins --tests

.PHONY: help
help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 18

.PHONY: demo
demo: toolchain ## a whole mesh on this machine, until Ctrl-C
	@$(cargo) run --locked -- demo $(ARGS)

# Cheapest first. `build` lints and makes the docs of what it compiles.
.PHONY: test
test: toolchain ## everything that CI checks
	@scripts/steps.sh fmt scripts manifests deny fuzz-targets build tests

.PHONY: check
check: toolchain fmt ## the fast part: format, lints, docs, tidy and unit tests
	@if $(has_nextest); then $(nextest) --lib --bins --test tidy; \
	else $(checked) test --locked --workspace --lib --bins --test tidy; fi

# What `test` shows in a short form, in its long one.
.PHONY: soak
soak: toolchain ## the long forms of the tests, and what is too slow for every change
	@NEXTEST_PROFILE=soak OTELA_SOAK=1 BUDGET_MINUTES=240 scripts/steps.sh build tests

.PHONY: test-steady
test-steady: toolchain ## the tests again and again on half a machine: RUNS=10 make test-steady
	@scripts/steady.sh

.PHONY: bench
bench: toolchain ## added latency through ingress and mesh, against the engine directly
	@$(cargo) bench --locked --bench forward -- $(ARGS)

# The sanitizers are unstable options, which a stable compiler takes from RUSTC_BOOTSTRAP only. What is found goes below
# fuzz/target; fuzz/corpus is what the repository keeps.
fuzz := RUSTC_BOOTSTRAP=1 $(cargo) fuzz

.PHONY: fuzz
fuzz: toolchain ## feed the decoders what a fuzzer makes up: TARGET=entry SECONDS=600
	@for target in $(TARGET); do \
		mkdir -p "fuzz/target/corpus/$$target"; \
		$(fuzz) run "$$target" "fuzz/target/corpus/$$target" "fuzz/corpus/$$target" -- -max_total_time=$(SECONDS) -timeout=10; \
	done

.PHONY: bench-loopback
bench-loopback: toolchain ## real peers over loopback: one write seen by all, and what an idle mesh sends
	@$(cargo) bench --locked -p otela-node --bench loopback -- $(ARGS)

.PHONY: bench-serving
bench-serving: toolchain ## requests of virtual traffic that the simulator serves in a second
	@$(cargo) bench --locked -p otela-sched --bench serving -- $(ARGS)

.PHONY: bench-placement
bench-placement: toolchain ## how long the placement solver takes, and how good what it finds is
	@$(cargo) bench --locked -p otela-sched --bench placement -- $(ARGS)

.PHONY: bench-chaos
bench-chaos: toolchain ## what clients notice while nodes die, for ten minutes
	@$(cargo) bench --locked --bench chaos -- $(ARGS)

.PHONY: bench-agent
bench-agent: toolchain ## what a node costs its machine, and how soon it does what it must
	@$(cargo) bench --locked --bench agent -- $(ARGS)

.PHONY: bench-prompt
bench-prompt: toolchain ## how soon what must happen at once happens: clients that leave, nodes that die, stops, starts
	@$(cargo) bench --locked --bench prompt -- $(ARGS)

.PHONY: bench-fabric
bench-fabric: toolchain ## what a relay costs, and how soon peers behind NATs are reached
	@$(cargo) bench --locked --bench fabric -- $(ARGS)

.PHONY: docs
docs: ## the API's documentation, with private items, no broken link
	@RUSTDOCFLAGS="-D warnings -D rustdoc::broken_intra_doc_links" \
		$(cargo) doc --locked --workspace --no-deps --document-private-items

.PHONY: lab
lab: ## prepare what the tests lab_* need: clients, schemathesis, a real vLLM, promtool, namespaces
	@scripts/lab.sh

.PHONY: clean-lab
clean-lab: ## remove what `make lab` prepared
	@scripts/lab.sh --clean

# --- the steps of test, cheapest first

.PHONY: toolchain
toolchain:
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust with rustup (https://rustup.rs)" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "a C compiler is missing (aws-lc-sys and ring are partly C): apt-get install gcc libc6-dev" >&2; exit 1; }

.PHONY: fmt
fmt:
	@$(cargo) fmt --all -- --check
	@$(cargo) fmt --manifest-path fuzz/Cargo.toml -- --check

.PHONY: scripts
scripts:
	@if command -v shellcheck >/dev/null; then shellcheck $(scripts); \
	elif [ "$${CI:-}" = true ]; then echo "shellcheck is missing: apt-get install shellcheck" >&2; exit 1; \
	else echo "NOT CHECKED: the scripts, for shellcheck is missing (apt-get install shellcheck)" >&2; fi

.PHONY: manifests
manifests: ## what deploy/ has for Kubernetes, Docker and systemd
	@scripts/manifests.sh

.PHONY: deny
deny: ## licences, sources and versions of the dependencies
	@if command -v cargo-deny >/dev/null; then $(cargo) deny --locked --log-level error check bans licenses sources; \
	elif [ "$${CI:-}" = true ]; then echo "cargo-deny is missing: run scripts/lab.sh" >&2; exit 1; \
	else echo "NOT CHECKED: licences and sources of the dependencies, for cargo-deny is missing (make lab)" >&2; fi

# Where rustc.sh is not wanted: for an editor, say.
.PHONY: clippy
clippy:
	@$(cargo) clippy --locked --workspace --all-targets -- -D warnings

# Checked, not built: `make fuzz` builds the one that it runs, with a sanitizer.
.PHONY: fuzz-targets
fuzz-targets:
	@if command -v c++ >/dev/null; then $(cargo) check --quiet --locked --all-targets --manifest-path fuzz/Cargo.toml --target-dir target; \
	elif [ "$${CI:-}" = true ]; then echo "a C++ compiler is missing: apt-get install g++" >&2; exit 1; \
	else echo "NOT CHECKED: the fuzz targets, for a C++ compiler is missing (apt-get install g++)" >&2; fi

.PHONY: build
build:
	@if $(has_nextest); then $(nextest) --no-run; else $(plain_test) --no-run; fi
	@$(checked) build --locked --workspace --benches

# Outside CI the tests of a missing part of the lab are left out, and one line says so. In CI they run and fail.
.PHONY: tests
tests:
	@missing=; [ "$${CI:-}" = true ] || missing=$$(scripts/lab.sh --missing | paste -sd' '); \
	filter='($(FILTER))'; skips=(); [ -n "$${OTELA_SOAK:-}" ] || skips=(--skip soak_); \
	for part in $$missing; do filter+=" and not test(/(^|::)lab_$${part}_/)"; skips+=(--skip "lab_$${part}_"); done; \
	if $(has_nextest); then $(nextest) -E "$$filter" $(ARGS); else $(plain_test) -- "$${skips[@]}"; fi; \
	[ -z "$$missing" ] || echo "SKIPPED: the tests that need $${missing// / and }, which this machine lacks: 'make lab' prepares what it can and says what else to do" >&2

