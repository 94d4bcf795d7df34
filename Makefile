# GNU make 3.81 or newer, on Linux and macOS. `make` alone lists the targets.
# Another interpreter (3.11 or newer): make PYTHON=python3.12 test. Arguments for pytest: make test ARGS="-k fusion -x".

PYTHON ?= python3
ARGS ?=
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/installed.stamp
DOCS_INSTALLED := $(VENV)/installed-docs.stamp
MODELS_INSTALLED := $(VENV)/installed-models.stamp
BROWSER := $(VENV)/browser.stamp
QUICKSTART := notebooks/01_quickstart.ipynb

.PHONY: help setup demo test conformance models views bench lint format docs clean

help:
	@echo "make demo    run $(QUICKSTART) and save it, executed, in build/demo/"
	@echo "make test    run the tests, with a sample of the conformance suite"
	@echo "make setup   install torchtpu and its tools in $(VENV), and Chromium where apt-get can (demo and test do it)"
	@echo "make conformance  every operator in every variant against the CPU: hours; writes docs/ops.md"
	@echo "make models  train models of transformers and timm against the CPU: an hour; writes docs/models.md"
	@echo "make views   20,000 random programs of views and writes on both devices: hours"
	@echo "make bench   measure, and write tests/bench/results.md"
	@echo "make lint    check style; make format mends what it can"
	@echo "make docs    build the documentation in build/site/"
	@echo "make clean   remove what the targets above built, except $(VENV)"

setup: $(INSTALLED) $(BROWSER)

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "torchtpu needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@echo "installing torchtpu and its tools in $(VENV): this takes a few minutes"
	@$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	@$(PY) -m pip install -q -c constraints.txt -e '.[docs]'
	@touch $@

$(MODELS_INSTALLED): $(INSTALLED)
	@$(PY) -m pip install -q -c constraints.txt -e '.[models]'
	@touch $@

# Tried once for each installation; `rm .venv/browser.stamp` has it tried again.
$(BROWSER): $(INSTALLED)
	@sh .ci/install-chromium
	@touch $@

demo: $(INSTALLED)
	@mkdir -p build/demo
	@echo "running $(QUICKSTART)"
	@$(PY) -m nbconvert --log-level=WARN --KernelManager.transport_encryption=auto \
		--to notebook --execute --output-dir build/demo $(QUICKSTART)
	@$(PY) -m nbconvert --log-level=WARN --to html --output-dir build/demo build/demo/$(notdir $(QUICKSTART))
	@echo "executed notebook: $(CURDIR)/build/demo/$(notdir $(QUICKSTART))"
	@echo "as a page:         $(CURDIR)/build/demo/$(notdir $(QUICKSTART:.ipynb=.html))"

test: setup
	$(PY) -m pytest $(ARGS)

# All of PyTorch's operator databases: hours. It goes on where it was interrupted, unless the code has changed.
conformance: export TORCHTPU_CACHE_DIR = build/conformance-programs
conformance: $(INSTALLED)
	$(PY) -m tests.conformance --jobs 2 --json build/conformance --mode strict defer_and_fuse --page docs/ops.md $(ARGS)
	$(PY) -m tests.conformance --jobs 2 --json build/conformance-debug --mode debug --max-samples 1 $(ARGS)

# Most of the time is compiling, so XLA's optimizations are off. It goes on where it was interrupted.
models: export XLA_FLAGS = --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
models: export TORCHTPU_CACHE_DIR = build/model-programs
models: $(MODELS_INSTALLED)
	@mkdir -p build
	$(PY) -m tests.zoo --json build/models.jsonl --page docs/models.md $(ARGS)

views: $(INSTALLED)
	$(PY) -m tests.views --examples 20000 --jobs 2 $(ARGS)

bench: $(INSTALLED)
	$(PY) -m tests.bench $(ARGS)

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(INSTALLED)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

clean:
	rm -rf build dist torchtpu.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
