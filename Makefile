# Everything runs in .venv, which `make setup` makes or brings up to date. PYTHON3 is the interpreter it is made with.
PYTHON3 ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.installed
NODE_CLIENTS := tests/clients/node_modules/.installed
KAFKA_CLIENTS := build/kafka-clients/.built
SPARKS := 4.1 4.2 4.3

.PHONY: setup run test test-core test-kafka test-spark lint format proto bench soak conformance clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The clients in other languages that tests follow topics with.
$(NODE_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --prefix tests/clients && touch $@; \
	else echo "npm is not installed: the tests with Node clients will be skipped"; fi

# The Kafka clients of other languages, compiled; what has no toolchain here is left out and tried again next time.
$(KAFKA_CLIENTS): $(filter-out %node_modules,$(wildcard tests/kafka/clients/*.sh tests/kafka/clients/java/* tests/kafka/clients/go/* tests/kafka/clients/node/*.json))
	@tests/kafka/clients/setup.sh && touch $@ || test $$? -eq 3

# Each version of Spark in an environment of its own, for the tests of the connector with it.
build/spark-%/.installed: $(STAMP) tests/spark/matrix/setup.sh
	@PYTHON3=$(PYTHON3) tests/spark/matrix/setup.sh $* $(@D) && touch $@

run: setup
	$(BIN)/topics serve

test: test-core test-kafka test-spark

test-core: setup $(NODE_CLIENTS)
	$(PYTEST) -m 'not soak' --ignore tests/kafka/clients --ignore tests/spark --ignore tests/lakehouse tests

# Unmodified Kafka clients against the server.
test-kafka: setup $(KAFKA_CLIENTS)
	$(PYTEST) -m 'not soak' tests/kafka/clients

# The Spark connector and the lakehouse. What needs Java is skipped where there is none, and said so (pytest -ra).
test-spark: setup build/spark-4.1/.installed build/spark-4.3/.installed
	$(PYTEST) -m 'not soak' --durations 15 tests/lakehouse tests/spark

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHON=$(BIN)/python proto/generate.sh --check
	$(BIN)/python gateway_kafka/generate_schema.py --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Regenerates the stubs and the schema of the Kafka protocol; on a clean tree it must leave no diff.
proto: setup
	PYTHON=$(BIN)/python proto/generate.sh
	$(BIN)/python gateway_kafka/generate_schema.py

bench: setup build/spark-4.2/.installed
	PYTHONPATH=tests $(BIN)/python -m bench

# Long runs: random seeds, crash loops. TOPICS_SOAK_SECONDS is the budget of each.
soak: setup $(KAFKA_CLIENTS) $(SPARKS:%=build/spark-%/.installed)
	TOPICS_SOAK_SECONDS=$${TOPICS_SOAK_SECONDS:-600} $(PYTEST) -m soak --timeout 0 tests

# The outside suite's files and tests named in tests/conformance.txt, where the suite lies beside the project.
conformance: setup
	tests/conformance.sh

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
