# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo   what the demo needs into .venv, run `loopscope demo`
#   make test   what development needs into .venv, linters, types, documentation, the whole test suite
# A machine that already has torch 2.8 or newer (a CUDA build, say) lends it to .venv; otherwise torch 2.13.0 is installed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
HAS_TORCH := $(shell $(PYTHON) -c 'import torch; print(tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8))' 2>/dev/null)
ifeq ($(HAS_TORCH),True)
VENV_FLAGS := --system-site-packages
PINS       := -c constraints/pins.txt
else
PINS       := -c constraints/pins.txt -c constraints/torch.txt
endif
WORKERS ?= 2
# Each worker begins with its own half; whoever is done takes from the end of the other's.
PARALLEL := -n $(WORKERS) --dist worksteal
# What Python compiles is kept, whatever the machine's setting: tests start many processes, and pip need not compile all.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test lint size types imports docs pytest test-slow test-gpu notebooks bench mutation release-check clean
help:
	@grep -E '^#  ' $(MAKEFILE_LIST); echo "  make lint | size | types | imports | docs | pytest | test-slow | test-gpu | notebooks | bench | mutation | release-check | clean"

# Each set of extras has its stamp; the larger one holds the smaller.
setup: $(VENV)/.installed-dev
demo: $(if $(wildcard $(VENV)/.installed-dev),$(VENV)/.installed-dev,$(VENV)/.installed-studies)
	$(BIN)/loopscope demo

$(VENV)/.installed-%: pyproject.toml constraints/pins.txt constraints/torch.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "loopscope needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV) || { echo "cannot create $(VENV): on Debian, apt-get install python3-venv"; exit 2; }
	@# A pip of today resolves and unpacks in half the time of the one that venv brings.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINS) --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PINS) --editable '.[$*]'
	@touch $@

# What takes one core a minute runs beside the tests.
test: lint size
	$(MAKE) --no-print-directory --jobs 2 pytest types imports docs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
size: setup
	$(BIN)/python benchmarks/size.py
types: setup
	$(BIN)/mypy
imports: setup
	$(BIN)/lint-imports
docs: setup
	$(BIN)/python docs/build.py
pytest: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "not gpu and not slow" -rs

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "slow and not gpu" -rs

# Only the files with such tests: a GPU machine need not have the libraries that the others import.
test-gpu:
	$(PYTHON) -m pytest -m gpu -p no:cacheprovider $$(grep -rl --include='test_*.py' 'mark\.gpu' tests)

# Executes docs/notebooks again and stores the outputs.
notebooks: setup
	$(BIN)/python docs/notebooks/renew.py

bench: setup
	$(BIN)/python benchmarks/run.py $(BENCH_FLAGS)

# Forty small changes of each package that computes or stores; how many of them its tests notice.
mutation: setup
	$(BIN)/python tests/mutation.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site

# Wheel and sdist into dist/, their metadata checked, the wheel tried in an environment of its own.
RELEASE := build/release
release-check:
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(RELEASE)/tools/bin/python -m build --outdir dist
	$(RELEASE)/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)/clean
	$(RELEASE)/clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/pins.txt -c constraints/torch.txt dist/*.whl
	cd $(RELEASE) && clean/bin/loopscope --version && clean/bin/loopscope demo --questions 2 --progress none
