# Each target does its own set-up (see scripts/setup.sh); bash and make suffice to run it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo test test-one lint check long redis spark-oldest spark-versions versions campaign format docs bench bench-quick microbench pypaimon peers clean

# With it set, every test process would compile every test again: a seventh of the time of `make check`.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
WORKERS ?= 2
# number of seeds of the checkpoint manager's simulation in `make campaign`
SEEDS ?= 20000
PYTEST := $(BIN)/python -m pytest -q
# CPU=FOLDER records the CPU time of each test: make test CPU=cpu && .venv/bin/python scripts/cpu_time.py --table cpu
PASSES := $(BIN)/python scripts/passes.py --workers $(WORKERS) $(if $(CPU),--cpu $(CPU))

BENCH := $(PYTEST) bench -p no:xdist -o console_output_style=classic -o python_files='bench_*.py'
# If such an environment cannot be made, .venv-NAME/failed has the reason, and the report shows it.
export EPOCHLOG_BENCH_PYPAIMON ?= $(abspath .venv-pypaimon/bin/python)
export EPOCHLOG_BENCH_FLINK ?= $(abspath .venv-flink/bin/python)
export EPOCHLOG_BENCH_PATHWAY ?= $(abspath .venv-pathway/bin/python)
# Steps that the means of P21 are of: 300 take 4 ½ hours.
export EPOCHLOG_BENCH_STEPS ?= 30

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | column -t -s $$'\t'

setup:  ## create .venv and look for Java
	@scripts/setup.sh

setup-demo:
	@scripts/setup.sh demo

demo: setup-demo  ## the flights demo: four views on Spark, compared with DuckDB at ten moments
	@$(BIN)/epochlog demo

lint: setup  ## `make check` without its tests
	@$(PASSES) lint

check: setup  ## format, lint, types, tidy and fast tests: four minutes on two cores
	@$(PASSES) check

test: setup  ## all tests, with Spark; some of stores also on S3 and Redis: 19 minutes on two cores
	@$(PASSES) test

test-one: setup  ## one test: make test-one T=tests/store/test_sorted_run.py::test_name, or a file, a folder, T="PATH -k WORD"
	@$(if $(T),,$(error name a test: make test-one T=tests/store/test_sorted_run.py))
	@$(PYTEST) $(T)

long: setup pypaimon  ## the tests of `make test` on a larger scale, with random kills; types of tests and bench too: half an hour
	@$(PASSES) long

redis: setup  ## the tests of `make test` that use Redis, with each redis-server that this machine can have but that of `make test`
	@$(PASSES) redis

spark-oldest: setup  ## each way from Spark into a store and back, on the oldest Spark that epochlog supports: two minutes
	@scripts/setup_spark.sh 4.0
	@$(PASSES) spark-oldest

spark-versions: setup  ## all Spark tests on each version of Spark, half an hour for each; writes the table of docs/SPARK.md
	@$(BIN)/python scripts/spark_versions.py --write

versions: setup  ## short tests with the lowest and newest packages, on each Python of the machine; writes the table of docs/guide/deploying.md
	@$(BIN)/python scripts/versions.py --write --workers $(WORKERS)

campaign: setup  ## the longest tests: each failpoint every time it is reached, random power cuts, races for minutes, thousands of seeds
	@EPOCHLOG_SIM_SEEDS=$(SEEDS) $(PASSES) campaign

bench: setup peers  ## measure epochlog and its peers, and write docs/PERFORMANCE.md: two and a half hours on two slow cores
	@scripts/setup_spark.sh 4.0
	@$(BENCH) --benchmark-columns=min,median,rounds --benchmark-sort=name

bench-quick: setup peers  ## print the tables of `make bench` at a tenth of the size, and what moved since the last of record
	@$(BENCH) $(if $(KEEP),--keep) --quick --benchmark-disable --ignore=bench/bench_tpch.py --ignore=bench/bench_attached.py

microbench: setup  ## time single calls of the core operations beside their record; KEEP=1 writes a new record
	@$(PYTEST) bench/microbench.py -p no:xdist -o console_output_style=classic -o python_files=microbench.py \
		--benchmark-group-by=param:name --benchmark-columns=min,median,rounds \
		$(if $(KEEP),--benchmark-json,--benchmark-compare)=bench/of_record/micro.json

pypaimon: setup
	@scripts/setup_peer.sh pypaimon

peers: pypaimon
	@scripts/setup_peer.sh flink
	@scripts/setup_peer.sh pathway

format: setup  ## format the code and apply ruff's automatic fixes
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

docs: setup  ## build the site of all pages and the API reference in site/, and check its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would not count warnings
	@echo "read site/index.html; its search needs a server: $(BIN)/python -m http.server --directory site"

clean:  ## remove all environments and generated files
	@rm -rf .venv .venv-pypaimon .venv-flink .venv-pathway .venv-spark .venv-versions .redis build dist site demo-output *.egg-info src/*.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks spark-warehouse metastore_db
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
