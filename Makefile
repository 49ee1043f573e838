# One command each; every one of them does its own set-up (see scripts/setup.sh) and needs nothing but bash and make before.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo test test-one check long redis campaign format docs bench bench-quick pypaimon clean

# where it is set, every test process would compile every test anew: a seventh of `make check`
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
WORKERS ?= 2
# how many seeds of the checkpoint manager's simulation a campaign runs
SEEDS ?= 20000
PYTEST := $(BIN)/python -m pytest -q
PASSES := $(BIN)/python scripts/passes.py --workers $(WORKERS)

BENCH := $(PYTEST) bench -p no:xdist -o console_output_style=classic -o python_files='bench_*.py'
# where that could not be made, .venv-pypaimon/failed says why, and the report with it
export EPOCHLOG_BENCH_PYPAIMON ?= $(abspath .venv-pypaimon/bin/python)

help:  ## say what can be made
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | column -t -s $$'\t'

setup:  ## make .venv and look for Java
	@scripts/setup.sh

setup-demo:
	@scripts/setup.sh demo

demo: setup-demo  ## the flights demo: four views on Spark, compared with DuckDB at ten moments
	@$(BIN)/epochlog demo

check: setup  ## format, lint, types, tidy and fast tests: under two minutes
	@$(PASSES) check

test: setup pypaimon  ## tests of everything, with Spark too; stores again on S3 and Redis: under ten minutes
	@$(PASSES) test

test-one: setup  ## one test: make test-one T=tests/store/test_sorted_run.py::test_name, or a file, a folder, T="PATH -k WORD"
	@$(if $(T),,$(error say which test: make test-one T=tests/store/test_sorted_run.py))
	@$(PYTEST) $(T)

long: setup pypaimon  ## the same on a larger scale, with random kills; types of tests and bench too: half an hour
	@$(PASSES) long

redis: setup  ## the tests that use Redis, with each redis-server that this machine can have
	@$(PASSES) redis

campaign: setup  ## the long versions: every failpoint every time, power cuts by chance, races for minutes, thousands of seeds
	@EPOCHLOG_SIM_SEEDS=$(SEEDS) $(PASSES) campaign

bench: setup pypaimon  ## the figures beside every peer, into docs/PERFORMANCE.md: forty minutes
	@$(BENCH) --benchmark-columns=min,median,rounds --benchmark-sort=name

bench-quick: setup pypaimon  ## the same table at a tenth of the size, to look at: three minutes
	@$(BENCH) --quick --benchmark-disable --ignore=bench/bench_tpch.py

pypaimon: setup
	@scripts/setup_pypaimon.sh

format: setup  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

docs: setup  ## the site of all pages and the API reference, into site/; its links are checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would not count warnings
	@echo "read site/index.html; its search wants a server: $(BIN)/python -m http.server --directory site"

clean:  ## remove everything that was made here
	@rm -rf .venv .venv-pypaimon .redis build dist site demo-output *.egg-info src/*.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks spark-warehouse metastore_db
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
