# One command each; every one of them does its own set-up (see scripts/setup.sh) and needs nothing but bash and make before.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test check campaign format bench bench-quick pypaimon clean

# where it is set, every test process would compile every test anew: a seventh of `make check`
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
WORKERS ?= 2
# how many seeds of the checkpoint manager's simulation a campaign runs
SEEDS ?= 20000
PYTEST := $(BIN)/python -m pytest -q
FAST := not spark and not slow and not campaign
# fewer examples of the random tests; `make test` takes all of them
BRIEF := HYPOTHESIS_PROFILE=quick EPOCHLOG_LAW_SEEDS=10 EPOCHLOG_MODEL_SEEDS=20
# what is run again with the catalog in Redis, and with the files on S3 as well; fewer examples, since each step is a request
AGAIN := tests/store tests/model tests/scenarios tests/law tests/checkpoint tests/batch
FAR := HYPOTHESIS_PROFILE=far EPOCHLOG_LAW_SEEDS=3

BENCH := $(PYTEST) bench -p no:xdist -o console_output_style=classic -o python_files='bench_*.py'
# where that could not be made, .venv-pypaimon/failed says why, and the report with it
export EPOCHLOG_BENCH_PYPAIMON ?= $(abspath .venv-pypaimon/bin/python)

help:  ## say what can be made
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | column -t -s $$'\t'

setup:  ## make .venv and look for Java
	@scripts/setup.sh

demo: setup  ## the flights demo: four views on Spark, compared with DuckDB at ten moments
	@$(BIN)/epochlog demo

check: setup  ## format, lint, types, tidy and fast tests: under two minutes
	@$(BIN)/ruff format --check --output-format concise . || { echo 'make format puts these right'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/basedpyright
	@$(BRIEF) $(PYTEST) -m "$(FAST)" -n $(WORKERS) --dist loadfile

test: setup pypaimon  ## every test: fast and slow ones side by side, those with Spark one by one, then stores again on Redis and S3
	@$(PYTEST) -m "not spark and not campaign" -n $(WORKERS) --dist loadfile
	@$(PYTEST) -m "spark and not campaign"
	@for store in redis s3; do \
		echo "== again with EPOCHLOG_TEST_STORE=$$store =="; \
		EPOCHLOG_TEST_STORE=$$store $(FAR) $(PYTEST) $(AGAIN) -m "$(FAST)" -n $(WORKERS) --dist worksteal; \
	done

campaign: setup  ## the long versions: every failpoint every time, power cuts by chance, races for minutes, thousands of seeds
	@$(PYTEST) -m campaign -n $(WORKERS) --dist worksteal
	@EPOCHLOG_SIM_SEEDS=$(SEEDS) $(PYTEST) tests/simulation -n $(WORKERS) --dist worksteal
	@EPOCHLOG_LAW_SLOW_SEEDS=1000 EPOCHLOG_RACE_SECONDS=120 HYPOTHESIS_PROFILE=thorough $(PYTEST) tests/law tests/model tests/conformance/test_racing.py tests/crash/test_upkeep.py -m "not spark"

bench: setup pypaimon  ## the figures beside every peer, into docs/PERFORMANCE.md: forty minutes
	@$(BENCH) --benchmark-columns=min,median,rounds --benchmark-sort=name

bench-quick: setup pypaimon  ## the same table at a tenth of the size, to look at: three minutes
	@$(BENCH) --quick --benchmark-disable --ignore=bench/bench_tpch.py

pypaimon: setup
	@scripts/setup_pypaimon.sh

format: setup  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

clean:  ## remove everything that was made here
	@rm -rf .venv .venv-pypaimon build dist demo-output *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks spark-warehouse metastore_db
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
