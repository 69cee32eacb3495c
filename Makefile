# Everything runs in .venv, which `make setup` makes or brings up to date. PYTHON3 is the interpreter it is made with.
PYTHON3 ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.installed
NODE_CLIENTS := tests/clients/node_modules/.installed
SDK_CLIENTS := build/sdk-clients/.built
KAFKA_CLIENTS := build/kafka-clients/.built
SPARKS := 4.1 4.2 4.3
TRUST := tests/backup tests/corruption tests/crash tests/fuzz tests/observability tests/security tests/simulation tests/soak

.PHONY: setup run test test-core test-trust test-sdk test-kafka test-spark lint format proto docs docs-serve bench soak conformance clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The clients in other languages that tests follow topics with.
$(NODE_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --prefix tests/clients && touch $@; \
	else echo "npm is not installed: the tests with Node clients will be skipped"; fi

# What the tests of the generated SDKs need of Go and Node, grpcurl among it; left out as the Kafka clients are.
$(SDK_CLIENTS): $(filter-out %node_modules,$(wildcard tests/sdk/languages/setup.sh tests/sdk/languages/go/* tests/sdk/languages/go/*/* \
		tests/sdk/languages/node/* sdk/generated/go/go.* sdk/generated/go/client/* sdk/generated/go/topics/v1/* \
		sdk/generated/ts/*.json sdk/generated/ts/src/* sdk/generated/ts/lib/* sdk/generated/ts/lib/*/*/*))
	@tests/sdk/languages/setup.sh && touch $@ || test $$? -eq 3

# The Kafka clients of other languages, compiled; what has no toolchain here is left out and tried again next time.
$(KAFKA_CLIENTS): $(filter-out %node_modules,$(wildcard tests/kafka/clients/*.sh tests/kafka/clients/java/* tests/kafka/clients/go/* tests/kafka/clients/node/*.json))
	@tests/kafka/clients/setup.sh && touch $@ || test $$? -eq 3

# Each version of Spark in an environment of its own, for the tests of the connector with it.
build/spark-%/.installed: $(STAMP) tests/spark/matrix/setup.sh
	@PYTHON3=$(PYTHON3) tests/spark/matrix/setup.sh $* $(@D) && touch $@

run: setup
	$(BIN)/topics serve

test: test-core test-trust test-sdk test-kafka test-spark

# The documentation is among it, whose code is written in all languages.
test-core: setup $(NODE_CLIENTS) $(SDK_CLIENTS)
	$(PYTEST) -m 'not soak' $(TRUST:%=--ignore %) --ignore tests/sdk --ignore tests/kafka --ignore tests/spark \
		--ignore tests/lakehouse tests

# What can go wrong with a server and its files: crashes, damage, backups, hostile clients, noise, long lives.
test-trust: setup
	$(PYTEST) -m 'not soak' $(TRUST)

# The SDKs: the Python client, the command line, the generated code of every language against a real server, grpcurl.
test-sdk: setup $(SDK_CLIENTS)
	$(PYTEST) -m 'not soak' --durations 15 tests/sdk

# The Kafka door, and unmodified Kafka clients against the server.
test-kafka: setup $(KAFKA_CLIENTS)
	$(PYTEST) -m 'not soak' tests/kafka

# The Spark connector and the lakehouse. What needs Java is skipped where there is none, and said so (pytest -ra).
test-spark: setup build/spark-4.1/.installed build/spark-4.3/.installed
	$(PYTEST) -m 'not soak' --durations 15 tests/lakehouse tests/spark

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHON=$(BIN)/python proto/generate.sh --check
	$(BIN)/python sdk/python/generate_sync.py --check
	$(BIN)/python gateway_kafka/generate_schema.py --check
	$(BIN)/python -m topics_openapi --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Regenerates the code of the SDKs, the schema of the Kafka protocol and the OpenAPI file; on a clean tree it must leave no
# diff. Says which language it leaves as it is where Go or npm is missing.
proto: setup
	PYTHON=$(BIN)/python proto/generate.sh
	$(BIN)/python sdk/python/generate_sync.py
	$(BIN)/python gateway_kafka/generate_schema.py
	$(BIN)/python -m topics_openapi

# The documentation site, into build/site; docs-serve shows it while it is written.
export NO_MKDOCS_2_WARNING := 1
docs: setup
	$(BIN)/mkdocs build --strict

docs-serve: setup
	$(BIN)/mkdocs serve

bench: setup build/spark-4.2/.installed
	PYTHONPATH=tests $(BIN)/python -m bench

# Long runs, which print their figures. The soak at load has MINUTES, the loop of kills TOPICS_KILLS, each of the others (random
# seeds, crashes of one kind) TOPICS_SOAK_SECONDS.
MINUTES ?= 10
SOAK := $(PYTEST) -m soak -s --timeout 0
KILLS := tests/crash/test_every_path_sigkill.py
soak: setup $(KAFKA_CLIENTS) $(SPARKS:%=build/spark-%/.installed)
	TOPICS_SOAK_SECONDS=$$(($(MINUTES) * 60)) $(SOAK) tests/soak
	TOPICS_KILLS=$${TOPICS_KILLS:-200} $(SOAK) $(KILLS)
	TOPICS_SOAK_SECONDS=$${TOPICS_SOAK_SECONDS:-60} $(SOAK) --ignore tests/soak --ignore $(KILLS) tests

# The outside suite's files and tests named in tests/conformance.txt, where the suite lies beside the project.
conformance: setup
	tests/conformance.sh

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
