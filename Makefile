# `make` alone lists the targets. Everything runs inside .venv, which `make setup` creates.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
.DEFAULT_GOAL := help

# Runs pytest on a suite. Of what failed, timing-sensitive tests are tried once more, alone; anything
# else stays failed (tests/harness/retry.py).
define run_tests
	@if $(BIN)/pytest --durations=20 $(2); then $(BIN)/python -m tests.harness.retry $(1) --none-needed; \
	else $(BIN)/python -m tests.harness.retry $(1); fi
endef

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: setup
setup: $(STAMP) ## create .venv and install the project for development (idempotent)

$(STAMP): pyproject.toml requirements/dev.txt
	@test -x $(BIN)/python || { echo "setup: creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "setup: installing uv into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	@echo "setup: installing Windlass and the tools for development, with the versions of requirements/dev.txt"
	@$(BIN)/uv pip install --python $(BIN)/python --constraint requirements/dev.txt --editable '.[dev]'
	@touch $@
	@echo "setup: done; for the command windlass: source $(VENV)/bin/activate"

.PHONY: demo
demo: setup ## start the embedded engine, run a job with live logs, show a job that waits and why
	@$(BIN)/python -m examples.demo

.PHONY: check
check: setup ## formatting, lint, types, import contracts, generated files, size budgets, links
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.generate --check
	@$(BIN)/python -m tools.imports
	@$(BIN)/python -m tools.budgets
	@$(BIN)/python -m tools.links
	@$(BIN)/python -m tools.release check

.PHONY: format
format: setup ## rewrite the code in the one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: generate
generate: setup ## write CRDs, JSON Schemas and reference pages from kinds/
	@$(BIN)/python -m tools.generate

.PHONY: docs
docs: setup ## build the documentation site into build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

.PHONY: docs-serve
docs-serve: docs ## serve the documentation site, with search, at http://127.0.0.1:8000
	@$(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8000

.PHONY: unit
unit: setup ## tests that need no server: kinds, core, stores, state machines
	@$(BIN)/pytest tests/unit

.PHONY: kubernetes-binaries
kubernetes-binaries: setup ## build the Kubernetes control plane once into the cache (about 8 minutes cold)
	@$(BIN)/python -m tests.harness.build

.PHONY: test
test: check ## every layer this machine can run; .ci/run calls it
	@if command -v go > /dev/null; then $(BIN)/python -m tests.harness.build; fi
	@if command -v go > /dev/null; then $(BIN)/python -m tests.harness.objectstore; fi
	@$(BIN)/python -m tests.harness.postgres
	@$(BIN)/python -m tests.harness.browser
	@$(BIN)/python -m tests.harness.kubelet
	@$(BIN)/python -m tests.harness.containerfile
	$(call run_tests,all,-n 2 -m "not frameworks")
	@$(MAKE) --no-print-directory frameworks

.PHONY: frameworks
frameworks: setup ## torch, MPI, JAX, Ray, Spark, Flink ... for real, in a cached layer of its own
	$(call run_tests,frameworks,-m frameworks tests/frameworks)

.PHONY: soak
soak: setup ## the long campaigns at full count: faults, fuzzing, load; older versions of Kubernetes
	@WINDLASS_SOAK=1 $(BIN)/pytest -m soak tests
	@$(BIN)/python -m tests.harness.versions

.PHONY: lock
lock: setup ## refresh the pinned versions of the development environment and of releases
	@$(BIN)/uv pip compile --quiet --no-header --no-annotate --universal --extra dev pyproject.toml -o requirements/dev.txt
	@$(BIN)/python -m tools.release lock

.PHONY: sbom
sbom: setup ## write the bill of materials of a release (CycloneDX) into build/sbom.json, and validate it
	@$(BIN)/python -m tools.release sbom build/sbom.json

.PHONY: audit
audit: setup ## ask PyPI for known vulnerabilities of the versions in a release
	@$(BIN)/python -m tools.release audit

.PHONY: clean
clean: ## remove .venv and caches of the checkout
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
