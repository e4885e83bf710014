# `make` lists the targets. Everything runs in .venv, which is made and filled the first time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

# packages come without bytecode, to install faster; without this every process would compile its imports anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-fast test-docs test-machines lint types format docs notebooks tables bench bench-gpu lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/demo.installed ## watch Sudoku puzzles being solved
	$(BIN)/ttcnet sudoku demo

test: lint types ## all checks: lint, format, types, tests; the same as CI
	$(BIN)/python -m pytest -n 2

test-fast: $(VENV)/test.installed ## the inner loop: the tests of the library that take little time
	$(BIN)/python -m pytest -n 2 --fast

test-docs: $(VENV)/test.installed ## README, pages, site, examples and notebooks
	$(BIN)/python -m pytest -n 2 tests/docs

test-machines: $(VENV)/test.installed ## the tests as other CPUs and numbers of threads would run them (half an hour)
	$(BIN)/python -m tests.machines

lint: $(VENV)/test.installed ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.installed ## mypy
	$(BIN)/mypy

format: $(VENV)/test.installed ## correct format and lint, as far as ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/test.installed ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Read it with: python3 -m http.server --directory site. Without a server, open site/index.html; search needs one."

notebooks: $(VENV)/test.installed ## run the notebooks and store their output
	$(PIP) --editable '.[notebooks]'
	$(BIN)/python notebooks/run.py

tables: $(VENV)/test.installed ## write the tables of README.md and docs/ from the files of results
	$(BIN)/python -m docs.tables

bench: $(VENV)/test.installed ## measure on the CPU and publish
	$(BIN)/ttcnet bench lqr --out benchmarks/results/lqr-cpu.csv
	$(BIN)/python -m docs.tables

bench-gpu: $(VENV)/test.installed ## measure on a GPU and publish
	$(BIN)/ttcnet bench lqr --device cuda --sweep all --limit 12 --out benchmarks/results/lqr-gpu.csv
	$(BIN)/python -m benchmarks figure
	$(BIN)/python -m docs.tables

lock: $(VENV)/test.installed ## lock the newest versions: uv.lock, and constraints.txt from it
	$(PIP) uv
	$(BIN)/uv lock --upgrade --default-index https://pypi.org/simple
	head -n 2 constraints.txt > constraints.new
	$(BIN)/uv export --frozen --all-extras --no-hashes --no-emit-project --no-annotate --no-header >> constraints.new
	mv constraints.new constraints.txt

clean: ## remove the environment and the output of commands
	rm -rf $(VENV) demo bench site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ttcnet needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing ttcnet into $(VENV) (a few minutes the first time) ..."
	$(PIP) --editable '.[plot,models]'
	@touch $@

# peers in tests; mpc pins an old numpy that it does not need, hence --no-deps. CasADi takes 280 MB: its tests skip
$(VENV)/test.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing ttcnet and its development tools into $(VENV) (a few minutes the first time) ..."
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps mpc==0.0.6 osqp==1.1.3
	@touch $@
