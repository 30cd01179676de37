# The newest that this was tried with first; tried by running it, for a name on the path may lead nowhere.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# For two cores: one begins with the tests that compute, one with tests that wait most of the time for processes that
# they started, and one with whole clusters (tests/file_order.py). A fourth made all slower: 12:39 minutes for 10:37.
WORKERS ?= 3

# The lower end of the range in pyproject.toml; constraints.txt has the release that everything else is tested with.
OLDEST_TORCH := 2.6.0
OLDEST_VENV := .venv-oldest-torch
# What calls torch. tests/integration/test_memory_dtensors.py is not among them: FSDP2 on the CPU fails inside torch 2.6.
OLDEST_TESTS := tests/unit/holdfast/trainer tests/unit/checks tests/unit/examples \
	tests/integration/test_ckpt_commands.py tests/integration/test_ddp_times.py tests/e2e/test_rank_killed.py

.PHONY: help setup demo test check check-style check-mypy check-pyright check-imports test-oldest-torch clean

help:  ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV)/.ready  ## Make the virtual environment, with the versions of constraints.txt

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "There is no Python 3.11 or newer with venv here: install one (on Debian python3-venv \
	too), or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . --group dev
	# pip would compile one file after another. What is left out, and what cannot be compiled, Python does at its import.
	-cd $(VENV)/lib/python3*/site-packages && $(CURDIR)/$(BIN)/python -m compileall -qq -j 0 \
		-x '/(_inductor|testing|tests|moto|mypy|networkx|pip|setuptools)/' .
	touch $@

demo: setup  ## Train a small GPT, kill a rank, lose a node, and show both recoveries
	$(BIN)/python -m examples.demo

# The tests start a thousand processes: what the first compiles is kept for the others, also where that is switched off.
test: setup  ## Run all tests; LONG=1: also those that take a minute each; WORKERS=3: processes
	PYTHONDONTWRITEBYTECODE= $(if $(LONG),HOLDFAST_LONG=1 HOLDFAST_DRILLS=1 )$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

check: check-style check-mypy check-pyright check-imports  ## Run ruff, mypy, pyright and the import rules

check-style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-mypy: setup
	$(BIN)/mypy

check-pyright: setup
	$(BIN)/pyright

check-imports: setup
	$(BIN)/lint-imports

# Not part of `make test`: the package index has this release with CUDA only, several GB.
test-oldest-torch:  ## Run the tests that use torch with its oldest supported release
	$(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	# It needs a release of sympy of its own.
	grep -vE '^(torch|sympy)==' constraints.txt > $(OLDEST_VENV)/constraints.txt
	$(OLDEST_VENV)/bin/python -m pip install --quiet --constraint $(OLDEST_VENV)/constraints.txt \
		torch==$(OLDEST_TORCH) --editable . --group dev
	$(OLDEST_VENV)/bin/python -m pytest $(OLDEST_TESTS)

clean:  ## Remove environments and caches
	rm -rf $(VENV) $(OLDEST_VENV) .mypy_cache .ruff_cache .pytest_cache
