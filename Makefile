# make demo   set everything up and watch Sudoku puzzles being solved
# make test   set everything up and run all checks: lint, types, tests
# make docs   set everything up and build the documentation into site/
# make test-machines   run what computes as other machines would: other CPUs, other numbers of threads (about half an hour)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

# packages come without bytecode, to install faster; without this every process would compile what it imports anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-machines lint types format docs notebooks tables bench bench-gpu clean

demo: $(VENV)/demo.installed
	$(BIN)/ttcnet sudoku demo

test: lint types
	$(BIN)/python -m pytest -n 2

test-machines: $(VENV)/test.installed
	$(BIN)/python -m tests.machines

lint: $(VENV)/test.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.installed
	$(BIN)/mypy

format: $(VENV)/test.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/test.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open site/index.html."

# run the notebooks and keep what they show
notebooks: $(VENV)/test.installed
	$(PIP) --editable '.[notebooks]'
	$(BIN)/python notebooks/run.py

# write the tables of README.md and docs/ from the files of results
tables: $(VENV)/test.installed
	$(BIN)/python -m docs.tables

bench: $(VENV)/test.installed
	$(BIN)/ttcnet bench lqr --out benchmarks/results/lqr-cpu.csv
	$(BIN)/python -m docs.tables

bench-gpu: $(VENV)/test.installed
	$(BIN)/ttcnet bench lqr --device cuda --sweep all --limit 12 --out benchmarks/results/lqr-gpu.csv
	$(BIN)/python -m benchmarks figure
	$(BIN)/python -m docs.tables

clean:
	rm -rf $(VENV) demo bench site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ttcnet needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing ttcnet into $(VENV) (a few minutes the first time) ..."
	$(PIP) --editable '.[plot,models]'
	@touch $@

# mpc pins an old numpy that it does not need, hence --no-deps
$(VENV)/test.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing ttcnet and its development tools into $(VENV) (a few minutes the first time) ..."
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps mpc==0.0.6
	@touch $@
