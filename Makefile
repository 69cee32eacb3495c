# Everything runs in .venv, which `make setup` makes or brings up to date. PYTHON3 is the interpreter it is made with.
PYTHON3 ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.installed
NODE_CLIENTS := tests/clients/node_modules/.installed

.PHONY: setup run test test-core lint format proto bench soak conformance clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The clients in other languages that tests follow topics with.
$(NODE_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --prefix tests/clients && touch $@; \
	else echo "npm is not installed: the tests with Node clients will be skipped"; fi

run: setup
	$(BIN)/topics serve

test: test-core

test-core: setup $(NODE_CLIENTS)
	$(PYTEST) -m 'not soak' tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHON=$(BIN)/python proto/generate.sh --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Regenerates the stubs; on a clean tree it must leave no diff.
proto: setup
	PYTHON=$(BIN)/python proto/generate.sh

bench: setup
	PYTHONPATH=tests $(BIN)/python -m bench

# Long runs: random seeds, crash loops. TOPICS_SOAK_SECONDS is the budget of each.
soak: setup
	TOPICS_SOAK_SECONDS=$${TOPICS_SOAK_SECONDS:-600} $(PYTEST) -m soak --timeout 0 tests

# The outside suite's files and tests named in tests/conformance.txt, where the suite lies beside the project.
conformance: setup
	tests/conformance.sh

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
