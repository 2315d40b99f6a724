# Needs Python 3.11+, a C++20 compiler and make; everything else comes from the package registry.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
PACKAGE ?= router
# Some peers of the backtest need Python 3.12 or 3.13; without one they are not measured.
PEERS_PYTHON ?= $(shell for each in python3 python3.12 python3.13; do $$each -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$each && break; done)
# ARCH=native builds the C++ core for this machine only; the default runs on any x86-64-v2 or aarch64.
ARCH   ?=

BIN       := $(VENV)/bin
NATIVE    := $(shell find native -type f)
INSTALLED := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export VENV

.DEFAULT_GOAL := help
.PHONY: help run test clients check soak format sanitize bench wheel docs lock clean check-python

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED) ## Install, then run QTS; ARGS="--duration 5s" passes options
	@$(BIN)/qts run $(ARGS)

test: $(INSTALLED) ## Install, then run every test, C++ and Python; ARGS="-k outbox" narrows the Python ones
	@scripts/native-tests.sh plain
	@$(if $(ARGS),$(BIN)/pytest --no-skips,scripts/tests.sh) --allow-missing-browser $(ARGS)

clients: $(VENV)-clients/.installed ## Run the clients of others against the simulators, in a separate venv; ARGS="-k ccxt"
	@$(VENV)-clients/bin/python -m pytest -p tests.no_skips --no-skips --confcutdir tests/clients tests/clients $(ARGS)

check: $(VENV)/.packages ## Format, lint, types, import layers, tests, sanitizers: everything that CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@scripts/check-all.sh

soak: $(INSTALLED) ## Run the long tests, and properties with more examples, for hours; ARGS="tests/faults" narrows them
	@$(BIN)/pytest --no-skips -m "soak or hypothesis" $(ARGS)

format: $(INSTALLED) ## Format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sanitize: $(INSTALLED) ## C++ tests under ThreadSanitizer and under AddressSanitizer with UBSan
	@scripts/native-tests.sh thread address

bench: $(VENV)-bench/.installed $(if $(filter backtest,$(PACKAGE)),$(if $(PEERS_PYTHON),$(VENV)-peers/.packages)) ## Measure PACKAGE=router beside its peers, in a separate venv; ARGS="--json F"
	@$(VENV)-bench/bin/qts dev bench $(PACKAGE) $(ARGS)

wheel: $(VENV)-wheel/.packages ## Build a wheel that installs without a compiler, and the source archive, in dist/
	@scripts/wheel.sh $(VENV)-wheel

docs: $(INSTALLED) ## Build the documentation site in build/site; a broken link fails
	@$(BIN)/python scripts/docs.py

lock: $(INSTALLED) ## Upgrade all versions and write their hashes to requirements/
	@scripts/lock.sh --upgrade

clean: ## Remove what the targets above created; QTS_HOME is kept
	rm -rf $(VENV) $(VENV)-bench $(VENV)-clients $(VENV)-peers $(VENV)-wheel build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

%/.packages: | check-python
	@scripts/install.sh $(or $(VENV_PYTHON),$(PYTHON)) $* $(filter requirements/%,$^)
	@touch $@

%/.installed: %/.packages pyproject.toml $(NATIVE)
	@echo "Building the C++ core ..."
	@$*/bin/pip install --quiet --no-deps --no-build-isolation --config-settings=cmake.define.QTS_BENCH=ON $(if $(ARCH),--config-settings=cmake.define.QTS_ARCH=$(ARCH)) --editable .
	@touch $@

.PRECIOUS: %/.packages %/.installed
$(VENV)/.packages: requirements/dev.txt
$(VENV)-bench/.packages: requirements/bench.txt
$(VENV)-clients/.packages: requirements/clients.txt
$(VENV)-wheel/.packages: requirements/wheel.txt
$(VENV)-peers/.packages: requirements/peers.txt
# Not PYTHON: one that is given on the command line would win.
$(VENV)-peers/.packages: VENV_PYTHON = $(PEERS_PYTHON)

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "QTS needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12 ..." >&2; exit 2; }
