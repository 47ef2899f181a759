# One command each: `make demo`, `make test`, `make check`, `make docs`, `make bench`. Needs python3
# (3.11 or newer, with venv: Debian's python3-venv) and make; the rest goes into .venv, once, at the
# versions of constraints.txt.
#
# Linux wheels of torch on PyPI bring CUDA, gigabytes of it. For the CPU-only build set PIP_EXTRA_INDEX_URL to
# PyTorch's CPU index, as its installation page shows.

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
# The demo needs the first, everything else the second.
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
# A gigabyte of frameworks, which nothing else needs.
FRAMEWORKS := $(CURDIR)/.venv-frameworks
# Another one, as large, of tools that look at what is in deploy/ and of two clouds' libraries.
DEPLOY := $(CURDIR)/.venv-deploy
# Modules are compiled when they are first imported, and most never are: for torch that saves a quarter of a minute.
PIP_INSTALL := -m pip install --no-compile -c constraints.txt
STUBS := reduction/v1/reduction_pb2.py reduction/v1/reduction_pb2.pyi

# The fast suites, and what they must cover together to the last branch. Folders: to find a package inside worker_plugin
# coverage would import torch, forget it, and crash when it is imported again (coverage 7.17).
COVERING := tests/property/ tests/conformance/ tests/unit/
COVERED := --cov=proto --cov=reducer/core --cov=worker_plugin/core
# What simulates whole jobs, or all orders of events, takes minutes when traced, and covers nothing that the others do
# not.
UNTRACED := tests/property/test_reducer_noise.py tests/property/test_reducer_schedules.py tests/unit/benchmarks/

# What runs without coverage, files that take minutes first.
FIRST := tests/torch_suite/ tests/simulation/ tests/examples/ $(UNTRACED)
OTHERS := $(FIRST) $(filter-out $(FIRST) $(COVERING) tests/support/,$(wildcard tests/*/))

# Many tests wait, so more run at a time than there are cores: three on two, four were no faster. Those of a file share
# servers. By itself xdist runs files with few tests last, which take longest here.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder

# Hundreds of processes load our code: compiled once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# More arguments for pytest or the demo: make bench ARGS=--full
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo demo-network test collect test-torch test-integrations deploy-check check docs bench clean

help: ## Show this.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv and install everything into it.

demo: $(RUNTIME) ## Train a small model: 2 reducers, 4 workers, compared with plain DDP.
	$(BIN)/python -m benchmarks.demo $(ARGS)

demo-network: $(RUNTIME) ## As root: train on links of 200 Mbit/s, ours and Gloo's ring side by side; under a minute.
	$(BIN)/python -m benchmarks.demo.network $(ARGS)

test: $(STAMP) ## Run the fast tests and check what they cover, then all others.
	$(BIN)/pytest $(PARALLEL) $(COVERING) $(UNTRACED:%=--ignore=%) $(COVERED) --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(BIN)/pytest $(PARALLEL) $(OTHERS) $(ARGS)

# Otherwise each of pytest's processes does that. What does not load is an error of `make test`.
collect: $(STAMP) ## Load all tests once, because pytest then compiles each file.
	-$(BIN)/pytest --quiet --collect-only $(COVERING) $(OTHERS) >/dev/null

test-torch: $(STAMP) ## Run torch's own tests on the backend "reduction" and on Gloo, and compare; about 5 minutes.
	$(BIN)/python -m tests.torch_suite $(ARGS)

test-integrations: ## Train with Lightning, Accelerate, Transformers, Ray, Spark, torchft and WebDataset, in an environment of their own.
	$(FRAMEWORKS)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) --quiet torch
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) --quiet -e \
		'.[lightning,accelerate,transformers,ray,torchft]' hypothesis pytest pytest-timeout \
		mlflow parameterized pillow pyspark 'pandas<3' pyarrow requests tabulate tensorboard webdataset
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks tests/examples/test_ladder.py $(ARGS)

simulate: $(STAMP) ## Simulate jobs under faults for a minute, or ARGS="--seconds 3600".
	$(BIN)/python -m tests.simulation $(ARGS)

deploy-check: $(STAMP) ## Test all of deploy/: build the image, run a Slurm, ask schemas; what Debian lacks is skipped.
	$(DEPLOY)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --quiet -r tests/deploy/requirements.txt
	$(BIN)/pytest tests/deploy --full -rs $(ARGS)

check: $(STAMP) ## Run what CI runs before the tests: format, lint, types, imports, schema, documents.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@echo "generated stubs against proto/reduction/v1/reduction.proto"
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && PYTHON=$(BIN)/python proto/generate.sh "$$out" && \
		for stub in $(STUBS); do diff -u "proto/$$stub" "$$out/$$stub" || exit 1; done
	$(BIN)/python docs/settings.py --check
	$(BIN)/python docs/measured.py --check
	@# Not with --quiet, which hides the warnings from --strict as well.
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
		NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir "$$out/site" 2>"$$out/log" || \
		{ grep -v ^INFO "$$out/log"; exit 1; }

docs: $(STAMP) ## Write docs/settings.md and the tables of docs/measured.md; build the site of docs/ into site/.
	$(BIN)/python docs/settings.py
	$(BIN)/python docs/measured.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP) ## Measure against the Gloo ring, and print the table; about 5 minutes.
	$(BIN)/pytest benchmarks/ $(ARGS)

clean: ## Remove caches, builds and results, but not .venv.
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	rm -rf .coverage .coverage.* benchmarks/results
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first, and alone: if it cannot be had, that shows before everything else is downloaded.
$(RUNTIME): pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) torch
	$(BIN)/python $(PIP_INSTALL) --quiet -e '.[torch,demo]'
	@touch $@

$(STAMP): $(RUNTIME)
	$(BIN)/python $(PIP_INSTALL) --quiet -e '.[dev]'
	@touch $@
