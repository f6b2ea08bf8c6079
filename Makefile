# Gangline's tasks. `make demo` and `make test` need Python >= 3.10 on a Unix machine and nothing else: each prepares what it needs.
# PYTHON=/path/to/python3 chooses the interpreter that .venv is made from; VENV=/path puts the environment somewhere else.

SHELL := /bin/sh
VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3 /usr/bin/python3; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && command -v "$$p" && break; done)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
EXTRAS := torch,search,debug,metaflow,docs,test,check

.PHONY: help setup demo test check bench docs clean
.DEFAULT_GOAL := help

help: ## list the tasks
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

$(READY): pyproject.toml tools/bootstrap.py
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.10 found; install one (Debian: apt install python3 python3-venv) or set PYTHON=" >&2; exit 1; }
	"$(PYTHON)" tools/bootstrap.py --venv "$(VENV)" --extras $(EXTRAS)

setup: $(READY) ## make the virtual environment and install everything into it

demo: $(READY) ## train a small GPT on 2 nodes x 2 ranks, kill a rank half-way, watch it finish
	$(BIN)/python examples/gpt/demo.py

test: $(READY) ## run every test
	$(PYTEST) -n $(WORKERS) tests

check: $(READY) ## run every static check, as CI does
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PYTEST) -p no:xdist tests/unit/test_project.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY) ## measure against the peers and write docs/benchmarks.md
	$(BIN)/python benchmarks/run.py

docs: $(READY) ## build the documentation into site/
	$(BIN)/python tools/generate_cli_reference.py
	$(BIN)/python tools/generate_signatures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## remove what these tasks made; runs and checkpoints under ~/.gangline stay
	rm -rf "$(VENV)" "$(VENV).lock" site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks tools -name __pycache__ -type d -exec rm -rf {} +
