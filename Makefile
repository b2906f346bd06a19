# make demo: optimise real networks and show what was gained.  make test: the whole test suite.
PYTHON ?= python3
BIN := .venv/bin
XDIST ?= auto

.PHONY: demo test venv lint types layers check clean

demo: venv
	$(BIN)/superopt demo

test: venv
	$(BIN)/python -m pytest -n $(XDIST)

venv: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/pyright

layers: venv
	$(BIN)/lint-imports
	$(BIN)/python -m superopt.lab.house

check: test lint types layers

clean:
	rm -rf .venv build *.egg-info
