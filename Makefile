# Everything from nothing: these targets bring their own uv and environment, and install nothing globally.
#   make train   train the SQL agent on this machine (TRAIN_ARGS="--agent autogen_sql --seed 1")
#   make test    all tests that take a core less than some seconds (TEST_ARGS="-k gateway")
#   make test-all  the whole test suite, with real trainings, as CI runs it
#   make docs    the documentation as a site, in site/
#   make coverage  which lines the tests run, those of trainings left out (TEST_ARGS=tests/gateway)
#   make faults  what is broken on purpose in trainings, and what happens: the table of docs/reliability.md

VENV ?= .venv
EXTRAS ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
TRAIN_ARGS ?= --agent langgraph_sql --set train.steps=8 --set train.val_every=4 --set train.learning_rate=5.0e-4
TEST_ARGS ?=
FAULT_ARGS ?=

# The first interpreter of a supported version that really starts (version managers leave dead shims on PATH).
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
# An interpreter that was named is used or refused, never replaced by another.
ifneq ($(origin PYTHON),file)
MINOR = import sys; print("%d.%d" % sys.version_info[:2])
NAMED := $(shell $(PYTHON) -c '$(MINOR)' 2>/dev/null)
PRESENT := $(shell test -x $(VENV)/bin/python && $(VENV)/bin/python -c '$(MINOR)')
ifeq ($(filter 3.11 3.12 3.13,$(NAMED)),)
$(error PYTHON=$(PYTHON) is $(if $(NAMED),Python $(NAMED),no Python that starts): name Python 3.11, 3.12 or 3.13)
endif
ifneq ($(filter-out $(NAMED),$(PRESENT)),)
$(error $(VENV) has Python $(PRESENT), and PYTHON=$(PYTHON) is $(NAMED): add VENV=.venv-$(NAMED), or "make clean" first)
endif
endif
UV_BIN := .uv/bin/uv
UV := UV_PROJECT_ENVIRONMENT=$(VENV) $(UV_BIN)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(EXTRAS)
CREATED = test -x $(BIN)/python || $(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
PYTEST := $(BIN)/pytest -m "not gpu"
BY_FILE := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: train test test-all test-others test-trainings test-gpu coverage faults docs lint format lock clean

# Bytecode is written at the first import and kept, whatever the environment says: compiling all 40,000 files takes longer
# than the rest of the installation.
train test test-all: export PYTHONDONTWRITEBYTECODE =
train: $(INSTALLED)
	$(BIN)/harness train $(TRAIN_ARGS)

# Test processes share the cores: OpenMP's threads of one would spin in the way of the others.
test test-all: export OMP_NUM_THREADS ?= 1
test: $(INSTALLED)
	$(BIN)/pytest -m "not gpu and not train and not slow" $(BY_FILE) $(TEST_ARGS)

# Two sessions side by side, since each process imports all that it might test, only one session's need torch and verl, and
# trainings wait a lot. That one's output follows at its end: of both at once nothing could be read. 5: TEST_ARGS leave a
# session no test.
test-all: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 test-others test-trainings

test-others: $(INSTALLED)
	$(PYTEST) $(BY_FILE) --ignore tests/train --ignore tests/policies $(TEST_ARGS) || [ $$? = 5 ]

test-trainings: $(INSTALLED)
	@log=$$(mktemp); $(PYTEST) -n 2 --maxschedchunk 1 tests/train tests/policies $(TEST_ARGS) > $$log 2>&1; \
	status=$$?; cat $$log; rm $$log; [ $$status = 0 ] || [ $$status = 5 ]

test-gpu: $(INSTALLED)
	$(BIN)/pytest -m gpu $(TEST_ARGS)

# A line a file with lines that nothing ran; files that all ran are left out. Failed tests do not keep it from being told.
coverage: export OMP_NUM_THREADS ?= 1
coverage: $(INSTALLED)
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -m "not gpu" $(BY_FILE) --ignore tests/train --ignore tests/policies $(TEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

faults: $(INSTALLED)
	$(BIN)/python benchmarks/faults.py $(FAULT_ARGS)

# Needs nothing but its own packages, a minute or less where nothing else is installed.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.installed-docs
	$(BIN)/python -m mkdocs build --strict
	@echo "site/index.html opens from the disk; its search needs a server: python -m http.server -d site"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(UV_BIN)
	$(UV) lock

$(UV_BIN):
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: install one, or make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet "uv>=0.9"

$(INSTALLED): pyproject.toml uv.lock $(wildcard plugins/*/pyproject.toml contrib/*/pyproject.toml) | $(UV_BIN)
	$(CREATED)
	@echo "installing into $(VENV): 7 GB or so, some minutes the first time"
	$(UV) sync --quiet --frozen --inexact --extra $(EXTRAS) --extra plugins
	touch $@

$(VENV)/.installed-docs: pyproject.toml uv.lock | $(UV_BIN)
	$(CREATED)
	$(UV) sync --quiet --frozen --inexact --only-group docs
	touch $@

clean:
	rm -rf $(VENV) .uv site
