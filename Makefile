# Every target sets up an environment first where there is none. `make help` lists them.

# A Python asked for by name (PYTHON=python3.12 make test) gets an environment of its own where .venv holds another one.
ifneq ($(origin PYTHON),undefined)
  VERSION_OF := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
  WANTED := $(shell $(PYTHON) $(VERSION_OF))
  $(if $(WANTED),,$(error PYTHON=$(PYTHON) does not run here))
  HELD := $(shell test ! -x .venv/bin/python || .venv/bin/python $(VERSION_OF))
  VENV ?= $(if $(filter-out $(WANTED),$(HELD)),.venv-$(WANTED),.venv)
endif
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Idle OpenMP threads sleep instead of spinning, and leave the few cores to those that work.
export OMP_WAIT_POLICY = passive
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint notebooks bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

venv: $(READY)  ## set up the environment and nothing else

demo: $(READY)  ## fit a model to an embedded crowd, print what it learned, leave the run in demo-run/
	@$(BIN)/pyrocrowd demo

test: lint  ## ruff, then all tests
	$(BIN)/python -m pytest

lint: $(READY)  ## ruff only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

notebooks: $(READY)  ## execute every notebook
	$(BIN)/python -m pytest tests/test_notebooks.py

bench: $(READY)  ## run the scripts in benchmarks/
	@for script in benchmarks/*.py; do \
		if [ ! -e "$$script" ]; then echo "There are no scripts in benchmarks/ yet."; break; fi; \
		echo "$$script"; $(BIN)/python "$$script" || exit 1; \
	done

clean:  ## remove what building, testing and the demo leave behind; environments stay
	rm -rf build dist demo-run .pytest_cache .ruff_cache .hypothesis *.egg-info
	find pyrocrowd models tests benchmarks notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

$(READY): pyproject.toml
	@echo "Setting up $(VENV) with $(PYTHON); this takes a few minutes the first time, torch is large."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@
