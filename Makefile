# make help | demo | test | check | bench
#
# `make demo` and `make test` need nothing but Python 3.11+ and a package index: each sets up .venv first.

PYTHON ?= python3
BIN := .venv/bin
DEMO ?= demo-data
ORACLES := nemo-automodel==0.7.0 nvidia-modelopt==0.47.0

.DEFAULT_GOAL := help
.PHONY: help venv demo test check format bench clean

help:  ## show this help
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

venv: .venv/.installed  ## set up .venv with everything that tests and demo need

# The versions the project is tested with are pinned in .ci/constraints.txt; pyproject's own ranges stay open.
# The oracles of the parity tests are installed without their dependencies: only their dataset modules are run.
.venv/.installed: pyproject.toml .ci/constraints.txt $(wildcard pipeline/media/_resample*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(ORACLES)
	touch $@

demo: venv  ## generate the demo data, bake it, validate it, replay it; prints where the report lies
	$(BIN)/python -m pipeline.demo.walkthrough $(DEMO)

test: venv  ## run the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: venv  ## formatting, lint, types, import law
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv  ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: venv  ## measure speed and memory, side by side with the reference
	$(BIN)/python -m tests.benchmarks

clean:  ## remove the virtual environment and the demo
	rm -rf .venv $(DEMO)
