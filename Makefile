# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	if command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$p; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# Each test starts many processes: without its byte code each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
QUICK_SEED ?= 4062

.DEFAULT_GOAL := help
.PHONY: duckdb15 help install demo test check lab bench evaluate evaluate-quick chaos contracts clean

help: ## shows this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "Greylag needs Python 3.11 or newer: none of python3.13, python3.12, python3.11, python3 is." >&2; exit 2; fi
	@if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		v=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "$(PYTHON) has no ensurepip, so no virtual environment can be made. On Debian or Ubuntu: apt-get install python$$v-venv" >&2; exit 2; fi
	@echo "Installing into $(VENV) (about a minute) ..." >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) ## creates .venv with the greylag command and everything the tests need

demo: install ## runs the main job: an emulated fleet breaks three times and heals (ARGS="--seed 3 --fault none ...")
	@$(BIN)/greylag demo $(ARGS)

test: install ## installs and passes the tests (three at a time: many wait for real processes; what `make check` holds is not repeated)
	@$(BIN)/pytest -m "not evaluate and not chaos and not lab" -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/structure $(ARGS)

check: install ## ruff, mypy, layering, contracts
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q tests/structure $(ARGS)
	@$(BIN)/python -m app.contracts --check

lab: install ## breaks ports, processes and a file system in namespaces of this machine, and a job on a real Slurm; scales collectors (six minutes; needs root, else it skips)
	@$(BIN)/pytest -q -m "lab and not evaluate and not chaos" -n 3 --dist loadfile --no-loadscope-reorder tests/lab tests/scale tests/slurm $(ARGS)

bench: install ## measures ingest, store, detect, fleet and query; JSON lines on stdout
	@for what in parse ingest store detect fleet query; do $(BIN)/greylag bench $$what --json || exit 1; done

evaluate: install ## longer studies: demos with three seeds, planted faults at random places (about 15 minutes)
	@$(BIN)/pytest -m evaluate -s $(ARGS)

evaluate-quick: install ## plants every fault once in virtual time and judges the shipped recordings; fails below 0.95 (about a minute on two cores)
	@$(BIN)/greylag evaluate --suite quick --first-seed $(QUICK_SEED) --floor 0.95 $(ARGS)

chaos: install ## kill and restart rounds (about 10 minutes)
	@$(BIN)/pytest -m chaos -s --hypothesis-profile=explore $(ARGS)

duckdb15: install ## the store's tests with the oldest DuckDB that is supported, in a folder of its own
	@test -d build/duckdb15/duckdb || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/duckdb15 duckdb==1.5.5
	@PYTHONPATH=build/duckdb15 $(BIN)/pytest -q -m "not evaluate and not chaos" tests/store $(ARGS)

contracts: install ## writes core/contracts.md anew from the types
	@$(BIN)/python -m app.contracts

clean: ## removes what the commands above made
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
