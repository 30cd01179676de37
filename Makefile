# The newest that this was tried with first; tried by running it, for a name on the path may lead nowhere.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for processes that they started, and the simulation takes what is left: a worker more than two cores.
WORKERS ?= 3

.PHONY: setup demo test check clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "There is no Python 3.11 or newer with venv here: install one (on Debian python3-venv \
	too), or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

demo: setup
	$(BIN)/python -m examples.demo

# LONG=1: also the tests that take a minute each.
# The tests start a thousand processes: what the first compiles is kept for the others, also where that is switched off.
test: setup
	PYTHONDONTWRITEBYTECODE= $(if $(LONG),HOLDFAST_LONG=1 HOLDFAST_DRILLS=1 )$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
