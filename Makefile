# Everything runs inside one virtual environment, made on first use from requirements.lock: the
# versions in constraints.txt with the hash of every file, so that nothing else is ever installed.
# Its stamp carries a hash of what it was made from, so that a change of either file, or a checkout
# in another folder, brings it up to date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(shell (cat pyproject.toml requirements.lock; pwd) | sha256sum | cut -c1-16)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# A tool that is no part of the environment, in one of its own that is deleted after use.
TOOL    = set -e; tool=$$(mktemp -d); trap 'rm -rf $$tool' EXIT; $(PYTHON) -m venv $$tool; \
    $$tool/bin/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install demo test processors check bench slow format pseudo-evidence recipe-evidence docs tables dist lock licenses audit

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.installed-*
	touch $@

install: $(STAMP)  ## create .venv with the pinned versions

# What the demo and its page need, and not the developers' tools: requirements-demo.lock, a part of
# requirements.lock. A whole installation will do, too.
DEMO_STAMP := $(subst .installed,.demo,$(STAMP))

$(DEMO_STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(INSTALL) --require-hashes -r requirements-demo.lock
	test -e $(STAMP) || $(INSTALL) --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.demo-*
	touch $@

demo: $(DEMO_STAMP)  ## learn from real images and search among classes never seen, in minutes
	$(BIN)/cbml demo

# A worker more than there are cores, since some tests wait, and one thread in each: workers with two
# threads wait for each other. Files in the order of tests/conftest.py, not the longest first.
# What the number of threads changes is repeated by `make processors`.
# Everything that is saved reaches the disk before it counts, thousands of times in the tests. Where
# there is room in memory for their files, they need not wait for it.
IN_MEMORY  := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 {print "TMPDIR=/dev/shm"}')
WORKERS    := $(shell expr $$(nproc) + 1)
# Where compiled files may not be kept, every worker and every process of a test compiles all anew.
PARALLEL   := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(IN_MEMORY) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
    --override-ini tmp_path_retention_policy=failed

test: $(STAMP)  ## run the tests
	$(PARALLEL)

# Each word holds libraries back to an older processor; every setting and both numbers of threads
# occur. Left out is what computes nothing: files, downloads, and processes that start each other.
PROCESSORS := \
    OMP_NUM_THREADS=1,ATEN_CPU_CAPABILITY=default,ONEDNN_MAX_CPU_ISA=SSE41,MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
    OMP_NUM_THREADS=2,ATEN_CPU_CAPABILITY=avx2,ONEDNN_MAX_CPU_ISA=AVX2,MKL_ENABLE_INSTRUCTIONS=AVX2 \
    OMP_NUM_THREADS=1,MKL_CBWR=COMPATIBLE
COMPUTING  := $(addprefix tests/, evaluation index/test_index.py index/test_kmeans.py losses \
    models/test_backbones.py models/test_bn_inception.py models/test_embedder.py \
    models/test_embedding.py models/test_execution.py models/test_folding.py)

processors: $(STAMP)  ## repeat the tests that compute as older processors would
	for processor in $(PROCESSORS); do \
	    echo "$$processor"; \
	    env $$(echo $$processor | tr , ' ') $(BIN)/python -m pytest -k 'not process' $(COMPUTING) || exit 1; \
	done

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

pseudo-evidence: $(STAMP)  ## what is learned from emoji without labels, against two baselines (an hour)
	$(BIN)/python examples/without_labels.py

recipe-evidence: $(STAMP)  ## the default recipe with CBML and with other losses, five paired seeds (hours)
	$(BIN)/python examples/recipe.py --set test_crop=none

tables: $(STAMP)  ## render docs/reproduce.md and docs/leaderboard.md from results/
	$(BIN)/python -m cbml.experiments.document docs results

dist: $(STAMP)  ## build the wheel in dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

lock:  ## both lock files anew, after a change of constraints.txt or pyproject.toml
	$(TOOL) uv==0.13.7; \
	compile="$$tool/bin/uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes \
	    --no-annotate --no-header pyproject.toml"; \
	$$compile --extra dev -c constraints.txt -o $$tool/lock; \
	echo setuptools | $$compile - --extra demo --extra serve -c $$tool/lock -o $$tool/demo; \
	(head -1 requirements.lock; cat $$tool/lock) > $$tool/whole; \
	(head -1 requirements-demo.lock; cat $$tool/demo) > $$tool/part; \
	cp $$tool/whole requirements.lock; cp $$tool/part requirements-demo.lock

licenses: $(STAMP)  ## docs/dependencies.md anew, from what the installed packages say of themselves
	$(BIN)/python docs/dependencies.py > docs/dependencies.md.new
	mv docs/dependencies.md.new docs/dependencies.md

audit:  ## compare requirements.lock with the known advisories; fails where the registry offers none
	$(TOOL) pip-audit==2.10.1; $$tool/bin/pip-audit --strict --disable-pip --require-hashes \
	    --progress-spinner off -r requirements.lock
