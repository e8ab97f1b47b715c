# `make demo` and `make test` need only Python >= 3.11, git and make: they create .venv and install into it.
# Another interpreter: make PYTHON=python3.12 test

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
BENCH   ?= $(sort $(wildcard benchmarks/bench_*.py))

BIN   := $(VENV)/bin
FAST  := not slow and not browser
READY := $(VENV)/.ready

.DELETE_ON_ERROR:
.PHONY: help demo docs docs-without-torch test lint format test-slow attack torch test-torch browser test-browser bench bench-peers clean

help:
	@echo "make demo       install, try every learner on three tasks, write a report"
	@echo "make test       install, then lint, types, import contracts and tests"
	@echo "make lint       the checks without the tests"
	@echo "make format     rewrite the sources in the house format"
	@echo "make test-slow  the tests that are too long for make test"
	@echo "make attack     random models, data, damaged files and kills, judged by enumeration; prints its totals"
	@echo "make test-torch the tests of the PyTorch engine and of torchrun; installs PyTorch, 0.2 to 2.6 gigabytes to fetch"
	@echo "make test-browser  the report in a real browser; fetches a Chromium if there is none"
	@echo "make docs       the documentation, as HTML in build/docs; runs the tutorials"
	@echo "make bench      the benchmarks (one of them: make bench BENCH=benchmarks/bench_x.py)"
	@echo "make bench-peers  what people bring, beside the programs they bring it from; fails where a ratio got worse"
	@echo "make clean      remove .venv, caches and build outputs"

demo: $(READY)-report
	$(BIN)/bactrian demo

# Warnings are errors, pages of names that are gone among them. Tutorials run while it builds: a minute or two.
docs: $(READY)-docs
	rm -rf docs/api/generated docs/commands/generated
	$(BIN)/python -m sphinx -W --keep-going -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html"

# As someone without PyTorch builds it, whether it is installed or not; the tutorials do not run.
docs-without-torch: $(READY)-docs
	rm -rf docs/api/generated docs/commands/generated
	$(BIN)/python -m sphinx -W --keep-going -q -t without_torch -D nb_execution_mode=off \
		-d build/doctrees-without-torch docs build/docs-without-torch

# By file, so that what the tests of a file share, kernels to compile among it, is made once. A killed worker is not
# replaced, but fails the run: by file, pytest-xdist would wait for the new one for ever. There are as many workers as
# cores: a second thread of BLAS spins while it waits for one, for half of the time of tests/camel and tests/judges.
test: lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 -m "$(FAST)"

lint: $(READY)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# pytest's exit status 5 says that no test carries the mark.
test-slow: $(READY)-dev
	$(BIN)/python -m pytest -m "slow and not browser" || test $$? -eq 5

attack: $(READY)-dev
	$(BIN)/python -m pytest -n $(WORKERS) tests/attack

torch: $(READY)-dev $(READY)-torch

test-torch: torch
	$(BIN)/python -m pytest -k torch tests/engines/test_torch*.py tests/parallel/test_ranks.py src/bactrian/engines/torch

# Status 3: no browser could be had. Then the tests skip, and say so.
browser: $(READY)-browser
	@$(BIN)/python tests/browser/finding.py

test-browser: $(READY)-browser
	@$(BIN)/python tests/browser/finding.py || test $$? -eq 3
	$(BIN)/python -m pytest -m browser tests/browser

bench: $(READY)-bench
	@test -n "$(BENCH)" || { echo "There is no benchmarks/bench_*.py to run."; exit 1; }
	@set -e; for script in $(BENCH); do echo "== $$script"; $(BIN)/python "$$script"; done

bench-peers: $(READY)-bench
	$(BIN)/python benchmarks/bench_peers.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
		.hypothesis .benchmarks docs/api/generated docs/commands/generated docs/notebooks
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# On Linux the registry's PyTorch brings CUDA along: 2.6 GB to fetch and 5.4 GB on the disk, a few minutes. The tests need
# none of it, so where pip is set up to find a build for the CPU alone (a version that ends in +cpu), that one is taken.
# pytorch-crf is a judge.
$(READY)-torch: pyproject.toml src/bactrian/__init__.py | $(READY)
	@build=$$($(BIN)/python -m pip index versions torch 2>/dev/null | grep -o '[0-9][0-9.]*+cpu' | head -n 1); \
	echo "Installing torch$${build:+==$$build} and bactrian[torch] into $(VENV); this may take minutes."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch$${build:+==$$build}" pytorch-crf --editable ".[torch]"
	@touch $@

# One stamp per set of extras: a second run installs nothing unless these files have changed.
$(READY)-%: pyproject.toml src/bactrian/__init__.py | $(READY)
	@echo "Installing bactrian[$*] into $(VENV); the first time takes a minute or two."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

$(READY):
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "$(PYTHON) was not found. Install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..."; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "bactrian needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1)."; \
		echo "Name another interpreter: make PYTHON=python3.12 ..."; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
