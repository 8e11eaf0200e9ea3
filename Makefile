# `make` says what there is. Everything happens in .venv; nothing is installed elsewhere but Delta's jars, which
# `python -m lakemq.jobs.jars` keeps in the user's cache folder (or in $LAKEMQ_JARS).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# On a terminal uv shows on stderr what it fetches, with progress bars; elsewhere it says nothing but errors.
QUIET := $(shell test -t 2 || echo --quiet)
AIRFLOW := .venv-airflow
AIRFLOW_LOCK := tests/airflow/requirements.lock
PYRIGHT := .venv-pyright
PYRIGHT_LOCK := tests/pyright/requirements.lock
# Python 3.11 or newer, able to make a virtual environment: the first that answers, or PYTHON=/path/to/python.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && \
	{ $$name -m pip --version || $$name -c 'import ensurepip'; } >/dev/null 2>&1 && { echo $$name; break; }; done)

# The lock names every package with its hash, so nothing is resolved. uv itself comes from pip, in the locked version.
UV_VERSION = $(shell sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.lock)
GET_UV = install --quiet --disable-pip-version-check uv==$(UV_VERSION)
UV_INSTALL = $(BIN)/uv pip install $(QUIET) --no-deps
# Without build isolation the locked setuptools builds the package, and no network is asked.
EDITABLE := --no-build-isolation --editable .
# PySpark ships as source. Its jars do not get smaller in a wheel: storing them saves ten seconds of compression.
STORED := --config-settings-package pyspark:--build-option=--compression=stored
COMPILE := pip compile setup.cfg --quiet --upgrade --universal --generate-hashes --no-annotate \
	--custom-compile-command 'make lock'

# Tests start many processes: none of them compiles again what another has, whoever calls make.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for leases, notifications and other processes, so three workers use two processors better than two do.
WORKERS := $(shell echo $$(($$(nproc) * 3 / 2)))
# Other cases wait longer: for clocks, for whole clusters, for processes that start and end.
MORE_WORKERS := $(shell echo $$(($$(nproc) * 2)))
PARALLEL := -n $(WORKERS) --dist worksteal tests/unit tests/golden tests/stateful
# One worker begins with all tests that share the Spark session. The others take files without a JVM and faults, mixed:
# what computes runs beside what waits for leases and for processes that were killed. Quick files come last: all end together.
MIXED := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder tests/unit tests/golden tests/stateful tests/spark tests/faults
ARCHIVE := $(VENV)/spark.jsa

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

.PHONY: setup
setup: $(READY) ## .venv with everything, and Delta's jars; a second run does nothing

$(READY): setup.cfg pyproject.toml requirements.lock
	@if [ ! -x $(BIN)/python ]; then \
	  "$(PYTHON)" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "make setup needs Python 3.11 or newer (with venv): PYTHON=/path/to/python make setup" >&2; exit 1; }; \
	  $(PYTHON) -m venv --without-pip $(VENV); fi
	@# The interpreter's own pip fetches uv where it can install elsewhere: to unpack a second pip takes six seconds.
	@[ -x $(BIN)/uv ] || $(PYTHON) -m pip --python $(BIN)/python $(GET_UV) 2>/dev/null || \
	  { $(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m pip $(GET_UV); }
	$(UV_INSTALL) --python $(BIN)/python --require-hashes $(STORED) -r requirements.lock
	@# The jars need no more than pyspark, so they come while the package is built.
	@$(BIN)/python -I lakemq/jobs/jars.py & jars=$$!; $(UV_INSTALL) --python $(BIN)/python $(EDITABLE) && wait $$jars
	@touch $@

.PHONY: lock
lock: $(READY) ## the newest versions within the ranges of setup.cfg, with their hashes
	$(BIN)/uv $(COMPILE) --extra all --extra dev --extra demo --python-version 3.11 -o requirements.lock
	@# setuptools builds the package there, too.
	echo setuptools | $(BIN)/uv $(COMPILE) - --extra airflow --python-version 3.11 -o $(AIRFLOW_LOCK)
	@# pyarrow's types are for the pyarrow of .venv.
	printf 'basedpyright\npyarrow-stubs\n' | $(BIN)/uv $(subst setup.cfg,-,$(COMPILE)) --no-emit-package pyarrow \
	  --python-version 3.11 -o $(PYRIGHT_LOCK)

.PHONY: demo
demo: $(READY) ## the tour, on data of its own
	$(BIN)/python docs/demo/tour.py

# A test is in `make test`, or marked `extended`: then .ci/run has it, or `nightly`: then only luck fails it.
.PHONY: test
test: $(READY) $(ARCHIVE) ## every capability works, from the core to Spark and killed processes
	$(BIN)/pytest $(MIXED) -m "not extended and not nightly"

.PHONY: test-all
test-all: $(READY) $(ARCHIVE) $(PYRIGHT)/ready ## make test and every other case of it that a change can break
	$(BIN)/pytest $(MIXED) -n $(MORE_WORKERS) -m "not nightly"

# What compares times of its own has the machine for itself.
ALONE := tests/faults/test_long_run.py
.PHONY: test-nightly
test-nightly: $(READY) $(ARCHIVE) ## what only luck finds: all examples of properties, random kills, rare cases, all stores, mutations, a soak: hours
	LAKEMQ_ALL_EXAMPLES=1 $(BIN)/pytest $(MIXED) -m "nightly or hypothesis" --ignore=$(ALONE)
	$(BIN)/pytest $(ALONE) tests/operating -m nightly
	$(BIN)/python -m lakemq.jobs.jars azure
	$(STORES) $(BIN)/pytest $(STORE_TESTS) -m nightly && $(BIN)/pytest -n 2 tests/unit/test_object_stores.py && $(BIN)/pytest $(CLUSTER)
	$(MAKE) mutations soak

$(ARCHIVE): $(READY) tests/jvm.py
	$(BIN)/python tests/jvm.py

.PHONY: test-fast
test-fast: $(READY) ## what starts no JVM and is not slow: about a minute
	$(BIN)/pytest $(PARALLEL) -m "not slow and not nightly"

# 280 MB, most of it Node.js, so it is no part of `make setup`. tests/unit/test_types.py puts the folder on its path.
$(PYRIGHT)/ready: $(PYRIGHT_LOCK) | $(READY)
	$(UV_INSTALL) --target $(PYRIGHT) --require-hashes -r $(PYRIGHT_LOCK)
	@touch $@

.PHONY: test-busy
test-busy: $(READY) $(ARCHIVE) ## make test three times beside four endless loops: no test fails because a machine is slow
	$(BIN)/python tests/busy.py $(MAKE) test

.PHONY: test-quality
test-quality: $(READY) ## the gate and the audit beside Great Expectations: about a minute
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/quality

# These tests look for credentials in the arguments of all processes, so no other test may run beside them.
CLUSTER := tests/stores/test_cluster.py
# Go and npm fetch the servers once.
STORE_TESTS := -n 2 --dist loadfile tests/stores --ignore=$(CLUSTER)
STORES = $(BIN)/python -m lakemq.jobs.jars s3a && s3=$$($(BIN)/python tests/versitygw.py) && \
	  azure=$$($(BIN)/python tests/azurite.py) && gcs=$$($(BIN)/python tests/gcs_server.py) && \
	  export LAKEMQ_TEST_S3="$$s3" LAKEMQ_TEST_AZURE="$$azure" LAKEMQ_TEST_GCS="$$gcs" &&
.PHONY: programs
programs: $(READY) $(PYRIGHT)/ready $(AIRFLOW)/ready ## what the targets of tests below fetch and build once
	$(STORES) $(BIN)/python tests/promtool.py

.PHONY: test-stores
test-stores: $(READY) $(ARCHIVE) ## the contract of a store on real servers, a cluster with faults on one of them, the programs of the guide on each
	$(STORES) $(BIN)/pytest $(STORE_TESTS) -m "not nightly" && \
	  $(BIN)/pytest -n 2 tests/unit/test_files.py -k "s3 or azure or gcs"

.PHONY: test-airflow
test-airflow: $(READY) $(ARCHIVE) $(AIRFLOW)/ready ## the shipped DAGs in a real Airflow, with an environment of its own: about three minutes
	$(BIN)/pytest tests/airflow

# Its provider for Spark brings pyspark-client, which must not meet our pyspark.
$(AIRFLOW)/ready: setup.cfg $(AIRFLOW_LOCK) | $(READY)
	$(BIN)/python -m venv --without-pip $(AIRFLOW)
	$(UV_INSTALL) --python $(AIRFLOW)/bin/python --require-hashes -r $(AIRFLOW_LOCK)
	$(UV_INSTALL) --python $(AIRFLOW)/bin/python $(EDITABLE)
	@touch $@

.PHONY: test-browser
test-browser: $(READY) ## the console in Chromium; skipped without chromium and chromedriver: about a minute
	$(BIN)/pytest -n 0 tests/browser

.PHONY: test-operating
test-operating: $(READY) ## a namespace broken in eight ways, asked with the command and the console; metrics and alerts with Prometheus, which Go builds once: four minutes, the first time six
	promtool=$$($(BIN)/python tests/promtool.py) && LAKEMQ_TEST_PROMTOOL="$$promtool" $(BIN)/pytest -n 0 tests/operating -m "not nightly"

.PHONY: coverage
coverage: $(READY) $(ARCHIVE) ## which lines and branches of the product make test-all takes, also in child processes that are not killed
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest $(MIXED) -m "not nightly"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

.PHONY: soak
soak: $(READY) ## processes stopped and killed at random for SECONDS=600, by SEED=, and every invariant checked
	PYTHONPATH=tests $(BIN)/python -m faults.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

.PHONY: mutations
mutations: $(READY) ## every comparison and number in the rules of groups changed, one at a time: does a test notice? About half an hour
	$(BIN)/python tests/mutations/run.py

.PHONY: walks
walks: $(READY) ## how many files of the product a poll, a publish and a fetch walk through
	$(BIN)/python tests/walks.py

.PHONY: lint
lint: $(READY) types ## format, lint, types, layers, language
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/plain_language.py

.PHONY: types
types: $(READY) ## mypy; strict for the protocol and the tables
	$(BIN)/mypy

.PHONY: bench
bench: $(READY) ## the benchmarks, with their table
	$(BIN)/python tests/bench/run.py

.PHONY: docs
docs: $(READY) ## the generated pages of docs/
	$(BIN)/python docs/site/generated.py

.PHONY: site
site: $(READY) ## the documentation site in site/; a warning or a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: pictures
pictures: $(READY) ## the pictures of the README, from real runs; needs Chromium and the report of make demo
	$(BIN)/python docs/pictures/make.py data/demo/report.html

.PHONY: console-pictures
console-pictures: $(READY) ## the pictures of the console on its page; needs Chromium and chromedriver
	LAKEMQ_WRITE_PICTURES=1 $(BIN)/pytest -n 0 tests/browser/test_console_pictures.py

.PHONY: dist
dist: $(READY) ## the wheel, the source, and the zip for spark-submit --py-files, in dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist
	@# A worker imports from a .zip; it does not from a .whl, though the bytes are the same.
	for wheel in dist/*.whl; do cp "$$wheel" dist/lakemq.zip; done
	rm -rf build

.PHONY: clean
clean: ## what the targets leave behind, but for the environments, data/demo and the kept jars
	rm -rf build dist site *.egg-info src/*.egg-info .coverage htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -exec rm -rf {} +
