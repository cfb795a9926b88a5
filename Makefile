# Two commands matter: `make demo` and `make test`. Both set up their own environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.package
STAMP  := $(VENV)/.installed

.PHONY: help setup demo test quick lint types unit chaos docs pages package bench clean

help:
	@echo "make demo   prune the shipped LeNet at five ratios; models and report go to demo-output/"
	@echo "make test   lint, type check and all tests"
	@echo "make quick  lint and the fast tests, under a minute"
	@echo "make chaos  kills, full disks, hanging workers, little memory: a printed tally; ten minutes"
	@echo "make docs   build the documentation to build/site, warnings as errors"
	@echo "make pages  make the results pages again from the committed rows"
	@echo "make package  wheels and sdists, installed and tried in a clean environment"
	@echo "make bench  measure speed against this machine's limit (DATA= and MODELS= name folders); up to two hours"
	@echo "make setup  only create .venv and install"

setup: $(STAMP)

# The demo needs the library alone; tests, docs and packaging need everything, the paper's evaluation included.
$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cli]'
	@touch $(BASE)

$(STAMP): $(BASE) paper/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e './paper[full,ray]'
	@touch $(STAMP)

demo: $(BASE)
	$(BIN)/subprune demo --output demo-output

test: lint types unit

# The numerical core, structure discovery and the figures of reports: no training, no browser, no processes.
QUICK := greedy reweight objective statistics scores select fuse structure trust_figures
quick: lint
	$(TESTED) $(BIN)/python -m pytest -q -n auto --dist load $(QUICK:%=tests/test_%.py)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

# One thread per worker: two multi-threaded runs on the same cores starve each other. Virtual machines may show AMX
# and not grant it: oneDNN then fails at the first bfloat16 product, and at everything after it.
TESTED := OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16
unit: setup
	$(TESTED) $(BIN)/python -m pytest -n auto --dist loadfile

# Kills, full disks, hanging workers, 500 calls, little memory, 3,000 new problems for the numerical core.
chaos: setup
	$(TESTED) $(BIN)/python tests/chaos.py $(if $(RECORD),--record $(RECORD)) $(if $(LANGUAGE),--language $(LANGUAGE))

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pages: setup
	$(BIN)/python scripts/pages.py

package: setup
	$(BIN)/python scripts/package.py

# On a quiet machine: with other work on the same cores the figures mean little.
bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/run.py $(if $(DATA),--data-dir $(DATA)) $(if $(MODELS),--models-dir $(MODELS))
	$(BIN)/python benchmarks/structure.py
	$(BIN)/python benchmarks/lenet_finetune.py
	$(if $(and $(DATA),$(MODELS)),$(BIN)/python benchmarks/curves.py --data-dir $(DATA) --weights $(MODELS)/resnet56-cifar10.safetensors --images 256)

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache build dist
