# Every target sets itself up in .venv from a bare Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The oldest transformers that cbmi.huggingface is for, beside the newest in $(VENV).
TRANSFORMERS4 := $(VENV)/transformers4
# Tests at a time. Many of them wait for a process of their own.
WORKERS := 3

.PHONY: setup demo test coverage test-fast test-faults test-browser lint format bench clean

setup: $(VENV)/.done

# torch first and by its exact version: a later, looser requirement is then already satisfied.
$(VENV)/.done: requirements.lock requirements-transformers4.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cbmi needs Python 3.11 or newer; say make PYTHON=/path/to/python3."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' requirements.lock)"
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(TRANSFORMERS4) \
	  -r requirements-transformers4.lock
	touch $@

demo: setup
	$(BIN)/cbmi demo

# All tests.
test: setup
	$(BIN)/pytest -n $(WORKERS) --dist worksteal
	PYTHONPATH=$(TRANSFORMERS4) $(BIN)/pytest -n $(WORKERS) --dist worksteal tests/huggingface

# All tests, with the share of lines that they run.
coverage: setup
	$(BIN)/pytest -n 2 --dist worksteal --cov=cbmi --cov-report=term:skip-covered

# The unit tests: under 90 seconds.
test-fast: setup
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

# What tests/faults tries in `make test` at a few places, at all of them: a quarter of an hour.
test-faults: setup
	CBMI_FAULTS=long $(BIN)/pytest -n 2 --dist worksteal -ra tests/faults

# The pages in a real browser, which is installed if there is none.
test-browser: setup
	$(BIN)/pip install --quiet -r requirements-browser.lock
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  { command -v apt-get && $$(command -v sudo) apt-get update -qq && \
	    $$(command -v sudo) apt-get install -y -qq --no-install-recommends chromium; } || \
	  $(BIN)/playwright install chromium
	CBMI_BROWSER=required $(BIN)/pytest tests/browser

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/mypy studies
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/cbmi benchmark

clean:
	rm -rf $(VENV) demo .coverage .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
