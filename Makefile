# make demo: optimise real networks and show what was gained.  make test: the whole test suite.  make docs: the site.
PYTHON ?= python3
BIN := .venv/bin
# one more than there are cores: tests wait a third of their time for processes
XDIST ?= $(shell expr $$(nproc) + 1)
export PYTHONDONTWRITEBYTECODE =  # or every process of the tests compiles the modules again

.PHONY: demo test slow venv lint types layers docs mutants check clean

demo: venv
	$(BIN)/superopt demo

test: venv
	$(BIN)/python -m pytest -n $(XDIST) --dist loadfile

slow: venv
	$(BIN)/python -m pytest -n $(XDIST) -m slow

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

docs: venv
	$(BIN)/mkdocs build

# make mutants: do tests notice a changed operator in 60 lines of the product?  ROOMS="superopt/store" COUNT=5: of a room
mutants: venv
	$(BIN)/python -m superopt.lab.mutants $(or $(ROOMS),superopt rewrites verifier costmodel) --count $(or $(COUNT),15) --seed $(or $(SEED),0) $(MUTANTS)

check: test lint types layers docs

clean:
	rm -rf .venv build *.egg-info
