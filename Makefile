# Everything runs inside one virtual environment, made on first use from the pinned versions in
# constraints.txt. Its stamp carries a hash of what it was made from, so that a change of either
# file, or a checkout in another folder, brings it up to date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(shell (cat pyproject.toml constraints.txt; pwd) | sha256sum | cut -c1-16)

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench slow format pseudo-evidence docs tables

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	rm -f $(VENV)/.installed-*
	touch $@

install: $(STAMP)  ## create .venv with the pinned versions

demo: $(STAMP)  ## learn from real pictures and search among classes never seen, in minutes
	$(BIN)/cbml demo

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest

check: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## print every measured ratio (takes a while; leave the machine alone)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

docs: $(STAMP)  ## make the documentation in site/
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs site
	@echo site/index.html

slow: $(STAMP)  ## the long fault and evidence tests
	$(BIN)/python -m pytest -m slow

pseudo-evidence: $(STAMP)  ## what is learned from emoji without labels, against two rivals (an hour)
	$(BIN)/python examples/without_labels.py

tables: $(STAMP)  ## render docs/reproduce.md from the records in results/
	$(BIN)/python -m cbml.experiments.document docs/reproduce.md results
