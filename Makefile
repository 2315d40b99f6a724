# Needs Python 3.11+, a C++20 compiler and make; everything else comes from the package registry.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
ROOM   ?= router
# ARCH=native builds the C++ core for this very machine; the default runs on any x86-64-v2 or aarch64.
ARCH   ?=

BIN       := $(VENV)/bin
NATIVE    := $(shell find native -type f)
INSTALLED := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export VENV

.DEFAULT_GOAL := help
.PHONY: help run test check format sanitize bench docs lock clean check-python

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED) ## Install, then run QTS; ARGS="--for 5s" passes options on
	@$(BIN)/qts run $(ARGS)

test: $(INSTALLED) ## Install, then run every test, C++ and Python; ARGS="-k outbox" narrows the Python ones
	@scripts/native-tests.sh plain
	@$(if $(ARGS),$(BIN)/pytest --no-skips,scripts/tests.sh) --allow-missing-browser $(ARGS)

check: $(INSTALLED) ## Format, lint, types, import ladder, tests, sanitizers: all that CI asks for
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@scripts/check-all.sh

format: $(INSTALLED) ## Format and fix what a tool can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sanitize: $(INSTALLED) ## C++ tests under ThreadSanitizer and under AddressSanitizer with UBSan
	@scripts/native-tests.sh thread address

bench: $(VENV)-bench/.installed ## Measure ROOM=router against its peers (in a venv of its own); ARGS="--json F"
	@$(VENV)-bench/bin/qts bench $(ROOM) $(ARGS)

docs: $(INSTALLED) ## Build the documents' site into build/site; a broken link fails
	@$(BIN)/python scripts/docs.py

lock: $(INSTALLED) ## Choose versions anew and write their hashes to requirements/
	@scripts/lock.sh --upgrade

clean: ## Remove what the targets above made here; QTS_HOME is left alone
	rm -rf $(VENV) $(VENV)-bench build .mypy_cache .pytest_cache .ruff_cache .hypothesis

%/.packages: | check-python
	@$(PYTHON) -m venv $*
	@echo "Installing packages (hashes checked) ..."
	@$*/bin/pip install --quiet --no-compile --require-hashes --requirement $(filter requirements/%,$^)
	@$*/bin/python -m compileall -qq -j 0 $*/lib
	@touch $@

%/.installed: %/.packages pyproject.toml $(NATIVE)
	@echo "Building the C++ core ..."
	@$*/bin/pip install --quiet --no-deps --no-build-isolation --config-settings=cmake.define.QTS_BENCH=ON $(if $(ARCH),--config-settings=cmake.define.QTS_ARCH=$(ARCH)) --editable .
	@touch $@

.PRECIOUS: %/.packages %/.installed
$(VENV)/.packages: requirements/dev.txt
$(VENV)-bench/.packages: requirements/bench.txt

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "QTS needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12 ..." >&2; exit 2; }
