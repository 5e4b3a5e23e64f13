# Every target that needs the environment depends on the stamp, so `make setup` is instant
# when nothing changed and no target has to be told to run it first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The tests start hundreds of processes. None shall compile again what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check format lint types contracts unit test tests test-long demo bench bench-spark screenshots reference wheel lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup: $(STAMP) ## Make .venv with the pinned dependencies

$(STAMP): requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

check: lint types contracts unit ## Format, lint, types, import contracts, tidy and unit tests

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/pytest -q tests/unit tests/tidy

format: $(STAMP) ## Rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tests wait now and then, and types can be checked meanwhile.
test: lint contracts ## All checks and all tests
	@$(MAKE) --no-print-directory -j 2 types tests

tests: $(STAMP)
	$(BIN)/python -m tools.run_tests

test-long: lint contracts types ## The same with every case and every campaign in full, for an hour or more
	QUEEN_TEST_LONG=1 $(BIN)/python -m tools.run_tests

demo: $(STAMP) ## Serve, push, consume, cut into windows, compute on Spark, and compare the counts
	$(BIN)/queen demo

bench: $(STAMP) ## Measure and print the tables of rates: the broker, and NEXMark on Spark
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.entry_streams
	$(BIN)/python -m benchmarks.shared_groups
	$(BIN)/python -m benchmarks.tasks --jobs 5000
	$(BIN)/python -m benchmarks.nexmark --events 200000

bench-spark: $(STAMP) ## Measure Spark over queues: NEXMark, reading speed, latency, joins
	$(BIN)/python -m benchmarks.nexmark
	$(BIN)/python -m benchmarks.spark_read
	$(BIN)/python -m benchmarks.spark_latency
	$(BIN)/python -m benchmarks.spark_joins

screenshots: $(STAMP) ## Take the pictures of the dashboard in docs/images again
	$(BIN)/python -m tools.screenshots

reference: $(STAMP) ## Write docs/reference from the served API document, the commands and the code
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.serve_reference
	$(BIN)/python -m tools.cli_reference
	$(BIN)/python -m tools.client_reference
	$(BIN)/python -m tools.stream_broker_reference
	$(BIN)/python -m tools.error_reference
	$(BIN)/python -m tools.module_map

wheel: $(STAMP) ## Build the package into dist/, to install it elsewhere
	$(BIN)/python -m hatchling build -t wheel -d dist

lock: ## Resolve requirements/*.in again (needs uv)
	for each in dev original-0.7.4 original-0.15.0 original-2.6.0 bench-tasks; do \
		uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
			requirements/$$each.in -o requirements/$$each.txt || exit 1; \
	done

clean: ## Remove the environments and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .bench .originals dist
