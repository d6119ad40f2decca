# Needs Python 3.11 or newer with pip, and make. Everything else goes into .venv, with the versions of requirements.lock.
#   make run    train sbm-dqn-ts and dqn on a small default, and compare them
#   make test   every check: format, lint, types, tests
#   make test-all   the slow tests too
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13 python3.14 python,\
  $(shell command -v $(p) >/dev/null 2>&1 && $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
BIN := .venv/bin
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0.2

.PHONY: help install develop run test test-all format lint types pytest lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/installed ## set up .venv

develop: .venv/developing ## and what the checks need

# Debian ships Python without ensurepip: then the pip outside fills the environment.
.venv/installed: requirements.lock pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer found. Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Installing into .venv (about a minute, once)"
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/developing: .venv/installed requirements-dev.lock
	@echo "Installing what the checks need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.lock
	@touch $@

run: install ## train sbm-dqn-ts and dqn on a small default: a table and a figure
	@$(BIN)/sbm demo

test: develop lint types pytest ## every check, without the slow tests

test-all: develop lint types ## every check and every test
	@$(BIN)/python -m pytest --numprocesses=$(CORES) --dist=worksteal

format: develop ## put the code into its format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: develop
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: develop
	@$(BIN)/mypy

# Little optimisation, which compiles faster. `make test-all` compiles as users do.
QUICK := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
pytest: export XLA_FLAGS := $(QUICK) $(XLA_FLAGS)
pytest: develop
	@$(BIN)/python -m pytest --numprocesses=$(CORES) --dist=worksteal -m "not slow"

COMPILE := uv pip compile --universal --python-version 3.11 --no-header --no-annotate --upgrade
lock: ## choose the newest versions again (needs uv)
	printf 'hatchling\neditables\n' | $(COMPILE) pyproject.toml - --output-file requirements.lock
	$(COMPILE) pyproject.toml --extra dev --constraint requirements.lock --output-file requirements-dev.lock

clean: ## remove what was installed and cached
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
