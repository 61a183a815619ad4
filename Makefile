# Needs python3 (3.11 or later) and make; everything else goes into .venv.
# Another interpreter: make test PYTHON=/path/to/python3.13

PYTHON ?= python3
WORKERS ?= auto
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# uv installs in a third of pip's time; where it cannot be had or reaches no index, pip does it.
# Modules are compiled at once, since every test process would compile its own otherwise.
define INSTALL
{ $(BIN)/python -m pip install --quiet uv && \
    $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[$(EXTRAS)]'; } || \
    $(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
endef
# One thread per test process: more only fight over the cores. Tests of a file stay together as far
# as possible, since they share what was trained.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --maxprocesses=8

# From nothing, so that every notebook is executed and no page of an earlier build is left.
define DOCS
rm -rf docs/_build
OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -T -W --keep-going $(DOCS_ARGS) -j $(WORKERS) -d docs/_build/doctrees -b html docs docs/_build/html
$(BIN)/python tests/check_docs.py docs/_build/html $(DOCS_CHECK)
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all check docs wheel clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## the paper's point on a CPU in about a minute: a table and a page (ARGS="--help")
	$(BIN)/flatnce demo $(ARGS)

# Executing the tutorials takes two minutes: test-all and docs do.
test: DOCS_ARGS := -t without-source -D nb_execution_mode=off -D suppress_warnings=myst-nb.lexer
test: DOCS_CHECK := --tutorials-not-executed
test-all: DOCS_ARGS := -t without-source
test: $(VENV)/.installed-dev  ## unit tests, doctests, the core's tests against the bare wheel, and the documentation
	$(PYTEST) $(ARGS)
	$(BIN)/python tests/check_wheel.py
	$(DOCS)

test-all: $(VENV)/.installed-dev  ## also the slow tests, every core test against the bare wheel, and the tutorials
	$(PYTEST) -m "" $(ARGS)
	$(BIN)/python tests/check_wheel.py --all
	$(DOCS)

check: $(VENV)/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.installed-docs  ## the documentation, into docs/_build; notebooks are executed, about two minutes
	$(DOCS)
	@echo "docs: open docs/_build/html/index.html"

wheel: $(VENV)/.installed-dev  ## source distribution and wheel, into dist
	$(BIN)/python -m build --outdir dist

clean:  ## remove what was built; .venv and runs stay
	rm -rf dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "flatnce: $(PYTHON) is not on the path; install Python 3.11 or later, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "flatnce: $$($(PYTHON) --version) is too old, 3.11 or later is needed; say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "flatnce: $(PYTHON) cannot create environments (no ensurepip); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps are newer than pyproject.toml when what it asks for is installed.
$(VENV)/.installed-dev: EXTRAS := dev
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "flatnce: installing torch and the development tools into $(VENV) (about a minute, once)"
	@$(INSTALL)
	@touch $@ $(VENV)/.installed-demo $(VENV)/.installed-docs

$(VENV)/.installed-demo: EXTRAS := cli,report
$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	@echo "flatnce: installing torch and the demo's needs into $(VENV) (about a minute, once)"
	@$(INSTALL)
	@touch $@

$(VENV)/.installed-docs: EXTRAS := cli,report,train,mi,sentence-transformers,open-clip,docs
$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.installed-demo
	@echo "flatnce: installing the documentation tools and what the tutorials use into $(VENV)"
	@$(INSTALL)
	@touch $@
