# Everything that a person does with this tree. `make` alone lists it.
#
# Each target does the set-up that it needs (tools/setup) and may be run again: what is done already is
# not done twice. An engine that had to be started for a target is stopped when the target ends.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-podman test-gvisor test-gvisor-core isolation fuzz bench check format generate lock images clean

# What the tests run on can be narrowed: make test TESTS=tests/unit PYTEST_FLAGS='-x -k timeout'
TESTS ?= tests
PODMAN_TESTS ?= tests/integration/test_engine.py tests/conformance
GVISOR_TESTS ?= tests/conformance tests/isolation tests/integration/test_outcomes.py
# Of each kind of difference from runc something: each interpreter, limits and ends, the kernel's surface, files.
GVISOR_CORE := tests/conformance/test_ends.py tests/integration/test_outcomes.py tests/isolation/test_kernel.py \
  tests/isolation/test_resources.py
RUNTIME ?=
PYTEST_FLAGS ?=
DEMO_FLAGS ?=
BENCH_FLAGS ?=
MINUTES ?= 10
LOCK_FLAGS ?=

BIN := .venv/bin
export UV_SYSTEM_CERTS ?= true

# What requirements/dev.txt is made from.
LOCKED := pyproject.toml requirements/build.in
EXTRAS := --extra daemon --extra maf --group dev

# Before the set-up, which takes a while: $(call there,WORDS) wants the files of pytest's arguments to be there.
there = for path in $(1); do [ -e "$${path%%::*}" ] || { \
  echo "make: the tests to run are '$(1)', and there is no $${path%%::*} here." >&2; exit 2; }; done

help:  ## Lists the targets
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Variables: TESTS, GVISOR_TESTS, PYTEST_FLAGS, MINUTES, DEMO_FLAGS, BENCH_FLAGS, LOCK_FLAGS; RUNTIME=runsc for"
	@echo "isolation; from the environment also"
	@echo "  DOCKER_HOST             an engine to use instead of the one at /var/run/docker.sock or one made here"
	@echo "  SKILLJAIL_PWSH_ARCHIVE  a PowerShell archive to build the pwsh image from, instead of Microsoft's release"
	@echo "  SKILLJAIL_STATE         where an engine that is made here keeps its data, instead of /var/lib/skilljail-dev"
	@echo "  PYTHON                  the Python to use, 3.11 or newer"

demo:  ## Runs the example skill in every interpreter, in sandboxes
	@tools/setup run $(BIN)/python tools/demo.py $(DEMO_FLAGS)

test:  ## Runs all tests
	@$(call there,$(TESTS))
	@tools/setup run $(BIN)/pytest $(TESTS) $(PYTEST_FLAGS)

test-podman:  ## Runs the tests of the engine and of a run's life on Podman
	@$(call there,$(PODMAN_TESTS))
	@tools/setup run --podman $(BIN)/pytest $(PODMAN_TESTS) $(PYTEST_FLAGS)

test-gvisor:  ## Runs the tests of a run's life and the attacks on gVisor
	@$(call there,$(GVISOR_TESTS))
	@tools/setup run --runtime runsc $(BIN)/pytest $(GVISOR_TESTS) $(PYTEST_FLAGS)

test-gvisor-core:  ## Runs those of them that tell most, in a few minutes
	@tools/setup run --runtime runsc $(BIN)/pytest $(GVISOR_CORE) $(PYTEST_FLAGS)

isolation:  ## Runs the attacks of docs/attacks.md and prints what came of each
	@tools/setup run $(RUNTIME:%=--runtime %) $(BIN)/pytest --attacks $(PYTEST_FLAGS)

fuzz:  ## Fuzzes parsers, lives and deaths for MINUTES (10)
	@SKILLJAIL_FUZZ_MINUTES=$(MINUTES) tools/setup run $(BIN)/pytest tests/fuzz $(PYTEST_FLAGS)

bench:  ## Measures what docs/ promises
	@tools/setup run $(BIN)/python -m bench $(BENCH_FLAGS)

check:  ## Checks style, types, contract, and that generated files are fresh
	@tools/setup python
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=tools:client:daemon:sandbox-images/init $(BIN)/mypy -p devenv -m demo
	$(BIN)/buf lint proto
	@# The environment is what requirements/dev.txt locks, so it has all that pyproject.toml asks for, or the lock is old.
	$(BIN)/uv pip install --quiet --dry-run --offline --no-index --no-cache $(EXTRAS) $(LOCKED:%=-r %) || \
	  { echo "requirements/dev.txt does not fit pyproject.toml: run 'make lock' and commit what it writes." >&2; exit 1; }
	tools/generate-proto --check
	$(BIN)/python sandbox-images/seccomp/generate.py --check

format:  ## Formats the code
	@tools/setup python
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

generate:  ## Writes the generated files: the contract's Python code, the seccomp profile
	@tools/setup python
	tools/generate-proto
	$(BIN)/python sandbox-images/seccomp/generate.py

lock:  ## Locks the development environment's packages anew
	@tools/setup python
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command 'make lock' $(EXTRAS) $(LOCK_FLAGS) \
	  --output-file requirements/dev.txt $(LOCKED)

images:  ## Builds the sandbox images that are missing or stale
	@tools/setup

clean:  ## Removes what the set-up made: .venv, logs, caches, the data of an engine made here
	@tools/setup clean
