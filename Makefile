# Everything a developer does, by name. The first use of any target makes .venv; afterwards that costs nothing,
# until pyproject.toml or the constraints change. Plain `make` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Set it to choose the interpreter: make test PYTHON=/usr/local/bin/python3.13
PYTHON ?=

bin := .venv/bin
installed := .venv/.installed
demo_home := build/demo
peers := build/peers
# Both are set: a store that the caller has exported is not the demo's.
demo := HOLDFAST_HOME=$(demo_home) HOLDFAST_STORE=$(demo_home)/record.sqlite $(bin)/holdfast
# Tests of the architecture and the documentation: `make check` runs them, the other tiers do not.
checked := tests/test_architecture.py tests/test_docs.py
demo_log := tests/data/google-70b-112-nodes-events.jsonl

# On a machine without network: make test-gpu PYTHON=python3 DEPENDENCIES=build/gpu-dependencies, with a folder that
# `make gpu-dependencies` made on another machine for the same version of Python.
DEPENDENCIES ?=
GPU_PYTHON_VERSION ?= 3.12
# Tests that train at once on the one GPU. Those that measure times run alone, before the others.
GPU_WORKERS ?= 4
gpu_dependencies := build/gpu-dependencies
gpu_python = $(if $(DEPENDENCIES),PYTHONPATH=$(CURDIR)/src:$(abspath $(DEPENDENCIES)) $(or $(PYTHON),python3),$(bin)/python)
# Ignore other pytest plugins that happen to be installed there.
gpu_pytest = PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(gpu_python) -m pytest -p xdist -p no:cacheprovider \
  --confcutdir=tests/gpu --durations=15
gpu_alone := tests/gpu/test_transport.py tests/gpu/test_profile.py tests/gpu/test_check.py

constraints := constraints.txt constraints-torch.txt
# What torch needs beside its own libraries, and what builds Holdfast: hashed like everything else.
beside := editables filelock fsspec hatchling jinja2 networkx setuptools sympy typing-extensions
pip := PIP_DISABLE_PIP_VERSION_CHECK=1 $(bin)/python -m pip install --quiet

# Sets $python to the first interpreter that is new enough, or says what is wanted.
find_python = python=; for candidate in $(PYTHON) $(if $(PYTHON),,python3 python3.13 python3.12 python3.11); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'holdfast needs Python 3.11 or newer, and found none; install one or name it: make PYTHON=/path/to/python3' >&2; exit 1; \
	fi

.PHONY: help
help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r target purpose; do \
	  printf '  make %-12s %s\n' "$$target" "$$purpose"; \
	done

.PHONY: demo
demo: $(installed) ## Train through a killed worker and a lost node, and show that the weights are the same.
	@rm -rf $(demo_home)
	@$(bin)/python examples/char_gpt/demo.py $(demo_home)

.PHONY: demo-control
demo-control: $(installed) ## A slow node under a real Slurm: noticed, migrated, drained, checked, restored; as a page.
	@mkdir -p $(demo_home)
	HOLDFAST_SHOW=$(CURDIR)/$(demo_home)/control.html $(bin)/python -m pytest -q -m soak tests/schedulers/test_show.py
	@echo "The time line is in $(demo_home)/control.html"

.PHONY: demo-ledger
demo-ledger: $(installed) ## Account for a published 112-node run, in the terminal and as a web page.
	@rm -rf $(demo_home)
	@mkdir -p $(demo_home)
	$(demo) import $(demo_log) --reference-step-s 8
	$(demo) report
	$(demo) report --html $(demo_home)/report.html

.PHONY: check
check: $(installed) ## Check format, lint, strict types, the import table and the documentation.
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/mypy
	$(bin)/python -m pytest --quiet --numprocesses 2 --dist worksteal $(checked)

.PHONY: quick
quick: $(installed) ## Run the tests that need no server and no root and take no time, after every edit.
	$(bin)/python -m pytest --quiet --numprocesses 2 --dist worksteal --hypothesis-profile=quick \
	  -m 'not (slow or server or root or soak or kubernetes)' $(checked:%=--ignore=%)

.PHONY: test
test: $(installed) ## Run the test suite, four tests at a time: many of them wait. As root it installs servers first.
	@if [ "$$(id -u)" = 0 ]; then $(bin)/python tests/train/servers.py || true; fi
	$(bin)/python -m pytest --numprocesses 4 --dist worksteal $(checked:%=--ignore=%)

.PHONY: soak
soak: $(installed) ## Run the tests that take minutes, and every property on forty times as many examples (ONLY=heirs: those).
	$(bin)/python -m pytest -m 'soak or hypothesis' --hypothesis-profile=soak --durations=0 $(if $(ONLY),-k '$(ONLY)')

.PHONY: servers
servers: ## Install the servers that tests need: PostgreSQL, Prometheus, Slurm, a browser (root or sudo).
	@$(find_python); "$$python" tests/train/servers.py

.PHONY: kubernetes-server
kubernetes-server: $(installed) ## Build a Kubernetes API server from Debian's source, once (root).
	$(bin)/python tests/train/kubernetes_server.py

.PHONY: test-kubernetes
test-kubernetes: kubernetes-server ## Test against a real Kubernetes API server; the first time it is built (root).
	$(bin)/python -m pytest -m kubernetes tests/schedulers

.PHONY: test-gpu
test-gpu: $(if $(DEPENDENCIES),,$(installed)) ## Run the NCCL suite on a machine with a GPU; needs no network.
	@$(gpu_python) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else \
	  "make test-gpu needs a machine with at least one GPU that torch can use; this one has none.")'
	status=0; \
	  $(gpu_pytest) $(gpu_alone) || status=$$?; \
	  $(gpu_pytest) --numprocesses $(GPU_WORKERS) --dist worksteal tests/gpu $(gpu_alone:%=--ignore=%) || status=$$?; \
	  exit $$status

.PHONY: gpu-dependencies
gpu-dependencies: $(installed) ## Make a folder with what test-gpu and run need beside torch, to carry to such a machine.
	rm -rf $(gpu_dependencies)
	mkdir -p build
	sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' constraints.txt > $(gpu_dependencies).txt
	$(pip) --target $(gpu_dependencies) --constraint $(gpu_dependencies).txt --only-binary :all: --implementation cp --python-version $(GPU_PYTHON_VERSION) \
	  --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
	  blake3 click msgspec prometheus-client pytest pytest-xdist rich typing_extensions
	find $(gpu_dependencies) -type d \( -name __pycache__ -o -name tests -o -name bin \) -prune -exec rm -rf {} +
	du -sh $(gpu_dependencies)

.PHONY: bench
bench: $(installed) $(peers)/.installed ## Measure everything that has a peer or a limit against it.
	$(bin)/holdfast bench ledger
	$(bin)/holdfast bench record
	$(bin)/holdfast bench checkpoint
	$(bin)/holdfast bench overhead
	$(bin)/holdfast bench rebalance
	$(bin)/holdfast bench recovery --peers-python $(peers)/bin/python
	$(bin)/holdfast bench sharded --size small
	$(bin)/holdfast bench diagnose

.PHONY: exam
exam: $(installed) ## Sit the independent exam of diagnose: one seed, 20 minutes of one core.
	$(bin)/python -m bench.exam --seeds 1

.PHONY: faults
faults: $(installed) ## Put the nanoGPT port through faults, five times each, and write docs/run.md's table of them.
	$(bin)/python testbed/survival.py --write docs/run.md

.PHONY: quiet
quiet: $(installed) ## Train for 20 minutes beside what is slow but not wrong: nothing may be killed.
	$(bin)/python testbed/quiet.py

.PHONY: testbed
testbed: $(installed) ## Make faults for real on this machine and have each diagnosed (root; 16 minutes).
	$(bin)/python testbed/live.py

.PHONY: format
format: $(installed) ## Rewrite the code in the house format.
	$(bin)/ruff format
	$(bin)/ruff check --fix

.PHONY: constraints
constraints: ## Resolve the newest versions afresh and pin them, with their hashes, in constraints.txt.
	@$(find_python); rm -rf build/constraints; "$$python" -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet uv
	printf '%s\n' $(beside) > build/constraints/beside.in
	build/constraints/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	  --generate-hashes --no-header --no-annotate --extra dev --extra postgres --extra ray --extra s3 \
	  --output-file build/constraints/new.txt pyproject.toml build/constraints/beside.in
	{ sed '/^[^#]/,$$d' constraints.txt; cat build/constraints/new.txt; } > build/constraints/constraints.txt
	mv build/constraints/constraints.txt constraints.txt

.PHONY: clean
clean: ## Remove everything that was made here: environment, caches, build.
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench testbed -name __pycache__ -type d -prune -exec rm -rf {} +

$(installed): pyproject.toml $(constraints)
	@$(find_python); echo "Setting up .venv with $$("$$python" --version); installing packages and torch takes some minutes"; "$$python" -m venv .venv
	@$(pip) --require-hashes --requirement constraints.txt
	@$(pip) --requirement constraints-torch.txt
	@$(pip) --no-deps --no-build-isolation --editable .
	@touch $@

# What `bench recovery` and `bench faultkit` compare with, apart from .venv: nothing of ours depends on it. A peer that
# has no wheel for this machine is left out there, with a sentence.
$(peers)/.installed: constraints-torch.txt
	@$(find_python); "$$python" -m venv $(peers)
	@torch=$$(grep '^torch==' constraints-torch.txt); pip="$(peers)/bin/python -m pip install --quiet --only-binary :all:"; \
	  $$pip "$$torch" nvidia-resiliency-ext==0.4.1 || $$pip "$$torch"; \
	  $$pip torchft==0.2.0 || true; \
	  $$pip "$$torch" lm-resiliency==0.2.0 || true
	@touch $@
