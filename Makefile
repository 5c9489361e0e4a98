# Two commands on a fresh machine with Python 3.11+ and make:
#
#   make demo                 the story in two daemons; make demo ARGS="bounds" for another cause
#   make test                 lint, types, tests with coverage
#
# Both work in .venv.  PYTHON=python3.12 picks the interpreter.
# Besides: make containers (the compose file, really run; wants root or a running Docker engine),
# make interop (against a real Linux kernel's rdma_rxe; wants root on Debian 12, and the first time
# about ten minutes to build that kernel), make captures (the golden ones in pcaps/), make clean.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(subst /,_,$(PYTHON))
TESTABLE := $(VENV)/.testable-$(subst /,_,$(PYTHON))

.PHONY: demo test containers interop captures clean

demo: $(INSTALLED)
	@$(BIN)/rocemu demo $(ARGS)

test: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --cov $(PYTEST_ARGS)

# Here nothing is skipped: without an engine, or tshark to read the capture, it is a failure.
containers: $(TESTABLE)
	ROCEMU_CI=1 tests/containers/engine $(BIN)/pytest tests/containers

# The kernel peer stays in the cache folder: the second time this takes as long as the tests do.
interop: $(TESTABLE)
	$(BIN)/python -m tests.interop.kit.build
	ROCEMU_INTEROP=1 $(BIN)/pytest tests/interop $(PYTEST_ARGS)

captures: $(INSTALLED)
	$(BIN)/python pcaps/make.py

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "rocemu needs Python 3.11 or newer; another one is named with make PYTHON=python3.12")'
	@echo "Installing rocemu into $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(TESTABLE): $(INSTALLED)
	@echo "Installing what the tests need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find rocemu layers tests -name __pycache__ -type d -prune -exec rm -rf {} +
