# `make` says what there is. Everything happens in .venv; nothing is installed elsewhere but Delta's jars, which
# `python -m lakemq.jobs.jars` keeps in the user's cache folder (or in $LAKEMQ_JARS).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
AIRFLOW := .venv-airflow
# Python 3.10 or newer, able to make a virtual environment: the first that answers, or PYTHON=/path/to/python.
PYTHON ?= $(shell for name in python3 python3.12 python3.11 python3.10; do \
	$$name -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && { echo $$name; break; }; done)

# Tests start many processes: none of them compiles again what another has, whoever calls make.
unexport PYTHONDONTWRITEBYTECODE

PARALLEL := -n auto --dist worksteal tests/unit tests/golden tests/stateful
# What computes, beside what waits for leases and for processes that were killed: of two processes each begins with its
# half, and who is done first takes from the end of the other's.
BESIDE := -n 2 --dist worksteal tests/spark tests/faults
ARCHIVE := $(VENV)/spark.jsa

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

.PHONY: setup
setup: $(READY) ## .venv with everything, and Delta's jars; a second run does nothing

$(READY): setup.cfg pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
	  [ -n "$(PYTHON)" ] || { echo "make setup needs Python 3.10 or newer (with venv): PYTHON=/path/to/python make setup" >&2; exit 1; }; \
	  $(PYTHON) -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools
	@# Without build isolation the build backend is the pinned one too.
	@# The warning is for folders named `lakemq`, of which there are none.
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation -c constraints.txt -e '.[all,dev,demo]'
	$(BIN)/python -m lakemq.jobs.jars
	@touch $@

.PHONY: demo
demo: $(READY) ## the tour, on data of its own
	$(BIN)/python -m lakemq.jobs.demo

.PHONY: test
test: $(READY) $(ARCHIVE) ## all tests but the long ones: no JVM first, then Spark beside killed processes
	$(BIN)/pytest $(PARALLEL) -m "not long"
	$(BIN)/pytest $(BESIDE) -m "not long"

$(ARCHIVE): $(READY) tests/jvm.py
	$(BIN)/python tests/jvm.py

.PHONY: test-long
test-long: $(READY) $(ARCHIVE) ## clocks that are hours off, processes stopped for hours, or killed at random: minutes of leases that must run out
	$(BIN)/pytest tests/faults tests/spark tests/unit tests/stateful -m long

.PHONY: test-fast
test-fast: $(READY) ## what starts no JVM and is not slow, in under 30 s
	LAKEMQ_FEW_EXAMPLES=1 $(BIN)/pytest $(PARALLEL) -m "not slow and not long"

.PHONY: test-quality
test-quality: $(READY) ## the gate and the audit beside Great Expectations, which takes its time: about two minutes
	$(BIN)/pytest -n auto --dist worksteal tests/quality

.PHONY: test-airflow
test-airflow: $(READY) $(ARCHIVE) $(AIRFLOW)/ready ## the shipped DAGs in a real Airflow, with an environment of its own: about seven minutes
	$(BIN)/pytest tests/airflow

# Its provider for Spark brings pyspark-client, which must not meet our pyspark.
$(AIRFLOW)/ready: setup.cfg constraints-airflow.txt | $(READY)
	$(BIN)/python -m venv $(AIRFLOW)
	$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-airflow.txt pip setuptools
	PYTHONWARNINGS='ignore:Editable installation' $(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation -c constraints-airflow.txt -e '.[airflow]'
	@touch $@

.PHONY: soak
soak: $(READY) ## processes stopped and killed at random for SECONDS=600, by SEED=, and every invariant checked
	PYTHONPATH=tests $(BIN)/python -m faults.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

.PHONY: mutations
mutations: $(READY) ## every comparison and number in the rules of groups changed, one at a time: does a test notice? About half an hour
	$(BIN)/python tests/mutations/run.py

.PHONY: lint
lint: $(READY) types ## format, lint, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache

.PHONY: types
types: $(READY) ## mypy; strict for the protocol and the tables
	@mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/lakemq
	@# Under the link's name nobody could click on a message.
	$(BIN)/mypy | sed 's|^$(VENV)/typing/lakemq/||'

.PHONY: bench
bench: $(READY) ## the benchmarks, with their table
	$(BIN)/python tests/bench/run.py

.PHONY: docs
docs: $(READY) ## the generated pages of docs/
	$(BIN)/python -m lakemq.jobs.docs

.PHONY: dist
dist: $(READY) ## the wheel, the source, and the zip for spark-submit --py-files, in dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist
	@# A worker imports from a .zip; it does not from a .whl, though the bytes are the same.
	for wheel in dist/*.whl; do cp "$$wheel" dist/lakemq.zip; done
	rm -rf build

.PHONY: clean
clean: ## what the targets leave behind, .venv and the kept jars excepted
	rm -rf build dist *.egg-info .coverage htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -exec rm -rf {} +
