# One command per intent. `make` alone lists them.

CONFIG ?= configs/digits.yaml
ARGS ?=

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check --no-input
# uv does not read pip's settings of an index, a proxy or certificates. Those of the environment come last and win.
LIKE_PIP := $$($(PIP) config list | sort -r | sed -nE -e 's/\\n/ /g' \
    -e 's/^[^=]*\.index.url=/export UV_DEFAULT_INDEX=/p' -e 's/^[^=]*\.extra.index.url=/export UV_INDEX=/p' \
    -e 's/^[^=]*\.find.links=/export UV_FIND_LINKS=/p' -e 's/^[^=]*\.trusted.host=/export UV_INSECURE_HOST=/p' \
    -e 's/^[^=]*\.cert=/export SSL_CERT_FILE=/p' -e 's/^[^=]*\.proxy=/export ALL_PROXY=/p')
INSTALL := eval "$(LIKE_PIP)"; $(VENV)/bin/uv pip install --quiet --python $(PYTHON) --no-deps --compile-bytecode
# GPU=1 installs TensorFlow with CUDA. An environment keeps its kind, because both packages write one folder.
GPU ?= $(wildcard $(VENV)/installed-gpu)
GPU_LOCK := $(if $(filter-out 0 no,$(GPU)),requirements-gpu.txt)
INSTALLED := $(VENV)/installed$(if $(GPU_LOCK),-gpu)
OTHER := $(VENV)/installed$(if $(GPU_LOCK),,-gpu)
# Not with the settings in pyproject.toml, which leave out `tensorflow` on Linux.
INSTALL_LOCKED := $(INSTALL) --require-hashes $(if $(GPU_LOCK),--no-config --excludes docker/locks/gpu-without.in)
RAW := .trainyard/raw/digits

# Without bytecode every import of TensorFlow or Airflow costs several times as much.
unexport PYTHONDONTWRITEBYTECODE

# Tests that start hardly any process.
UNIT := $(addprefix tests/,config contract job pages storage system user_code orchestration/test_orphan_reaper.py) \
    $(addprefix tests/test_,borders.py decisions.py groups.py names.py reach.py security_page.py)
# Heavy tests: the marks of pyproject.toml, in the order of .ci/groups.py.
GROUPS := airflow stores hosts kubernetes containers engines faults training models tutorials scale
EMPTY :=
ANY := $(subst $(EMPTY) $(EMPTY), or ,$(GROUPS))
ifneq ($(filter-out $(GROUPS),$(GROUP)),)
$(error GROUP is one of $(GROUPS), not $(GROUP))
endif
# Files of tests run side by side, in the order of tests/conftest.py: long ones first. Each process
# makes the data sets and models of its tests. Heavy tests wait more, so more of them run at once.
PARALLEL := --dist loadfile --no-loadscope-reorder
FEW := -n 3 $(PARALLEL)
MANY := -n 4 $(PARALLEL)
# Each of its tests has an Airflow, with four programs.
PROCESSES_airflow := $(FEW)
# One process: its tests share a Docker daemon, with images that are built once, or a cluster.
PROCESSES_containers := -n 0
PROCESSES_kubernetes := -n 0
# Its tests are in one file, and share only small data sets.
PROCESSES_tutorials := -n 3
# Its two tests need both cores.
PROCESSES_scale := -n 0

.PHONY: help install install-dev data run ui up up-run down test-unit test test-systems test-gpu check sbom audit bench pages-demo lock

help: ## list the commands
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## make .venv with everything that runs (GPU=1: on NVIDIA's GPUs)

install-dev: $(VENV)/installed-dev ## make .venv with everything that runs and tests

data: $(RAW) ## write the digits of scikit-learn as PNG files

run: install data ## retrain once and stop everything again (CONFIG=..., ARGS="--set train.epochs=3")
	@$(VENV)/bin/trainyard run $(CONFIG) $(ARGS)

ui: install data ## keep the embedded Airflow up until Ctrl-C
	@$(VENV)/bin/trainyard ui

up: ## build the images, start a cluster in miniature with Docker, and wait until it is healthy (BUILD=no)
	@docker/cluster.sh up

up-run: ## retrain once on the cluster, and wait (CONFIG=docker/configs/digits.yaml, ARGS="--set train.epochs=3")
	@docker/cluster.sh run $(notdir $(CONFIG)) $(ARGS)

down: ## remove the cluster with its volumes
	@docker/cluster.sh down

test-unit: install-dev ## the quick tests, under a minute
	@$(PYTHON) -m pytest -m "not ($(ANY))" $(FEW) $(ARGS) $(UNIT)

test: install-dev ## everything essential, with real parts
	@$(PYTHON) -m pytest -m "not ($(ANY))" $(FEW) $(ARGS)

test-systems: install-dev ## heavy tests: GROUP=airflow, hosts, containers, kubernetes, engines, stores, faults, training, models, tutorials or scale; all without GROUP
	@$(foreach group,$(or $(GROUP),$(GROUPS)),$(PYTHON) -m pytest -m $(group) $(or $(PROCESSES_$(group)),$(MANY)) $(ARGS) &&) true

test-gpu: install-dev ## training, export and serving on one NVIDIA GPU (DEVICE=cpu: tried out on CPUs)
	@TRAINYARD_TEST_DEVICE=$(or $(DEVICE),gpu) $(PYTHON) -m pytest $(ARGS) tests/gpu

sbom: install-dev ## list every locked package with version and hashes, in sbom.json (CycloneDX)
	@$(VENV)/bin/cyclonedx-py requirements requirements.txt --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.json

audit: install-dev ## list the locked packages by the age of their pins, or those with an advisory (ADVISORIES=all.zip, an export of OSV for PyPI)
	@$(PYTHON) .ci/audit.py $(ADVISORIES)

check: install-dev ## lint, formatting and types
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check --quiet .
	@$(VENV)/bin/mypy pipeline_ops beam_jobs dags

bench: install-dev data ## compare the chain with a plain script, the preprocess job with a hand-written program, also on Flink where it was fetched, deltas with full runs, training with fit and, where TORCH names a Python that has it, PyTorch, evaluation with model.predict and pycocotools, export by format, training from a store, unchanged runs in a bucket, a search with ASHA, and an Airflow with 200 pipelines
	@$(PYTHON) tests/bench/chain.py
	@$(PYTHON) tests/bench/preprocess.py $(ARGS)
	@$(PYTHON) tests/bench/engine.py
	@$(PYTHON) tests/bench/deltas.py
	@$(PYTHON) tests/bench/evaluation.py
	@$(PYTHON) tests/bench/training.py $(if $(TORCH),--torch $(TORCH))
	@$(PYTHON) tests/bench/training_state.py
	@$(PYTHON) tests/bench/export.py
	@$(PYTHON) tests/bench/streaming.py
	@$(PYTHON) tests/bench/unchanged.py
	@$(PYTHON) tests/bench/search.py
	@$(PYTHON) tests/bench/dags.py

UV := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
IMAGE := $(UV) -c requirements-dev.txt pyproject.toml
WITHOUT_AIRFLOW := $(IMAGE) --excludes docker/locks/without-airflow.in
CLIENTS := --extra docker --extra kubernetes
JOBS := $(CLIENTS) --extra serving --extra preprocess --extra train --extra onnx --extra slim

pages-demo: install-dev data ## retrain once, add 60 runs and 8 versions, and show their pages until Ctrl-C
	@$(PYTHON) tests/bench/pages.py --demo

lock: ## lock the dependencies again (needs uv)
	echo uv | $(UV) -o requirements-install.txt -
	$(UV) --extra all -o requirements.txt pyproject.toml
	$(UV) --extra dev -o requirements-dev.txt pyproject.toml
	$(UV) -c requirements-dev.txt --override docker/locks/gpu.in -o requirements-gpu.txt docker/locks/gpu.in
	$(UV) -c requirements-dev.txt -o docker/locks/build.txt docker/locks/build.in
	$(UV) -c requirements-dev.txt -o tests/docker/moto.txt tests/docker/moto.in
	$(IMAGE) docker/locks/airflow.in $(CLIENTS) --extra openlineage -o docker/locks/airflow.txt
	$(WITHOUT_AIRFLOW) $(JOBS) -o docker/locks/jobs.txt
	$(WITHOUT_AIRFLOW) docker/locks/serving.in --extra serving -o docker/locks/serving.txt
	$(WITHOUT_AIRFLOW) --extra preprocess -o docker/locks/beam-worker.txt

# A Python is only good if it starts (a version manager's shim may not) and can make an environment.
GOOD := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

$(PYTHON):
	@for name in python3.11 python3.12 python3.13 python3; do \
	    for python in $$(which -a $$name 2>/dev/null); do \
	        if $$python -c "$(GOOD)" 2>/dev/null; then \
	            echo "Making $(VENV) with $$python."; exec $$python -m venv --clear $(VENV); \
	        fi; \
	    done; \
	done; \
	echo "No usable Python found: Trainyard needs Python 3.11, 3.12 or 3.13 with its venv module (on Debian and Ubuntu: apt install python3-venv)." >&2; \
	exit 1

$(INSTALLED): requirements-install.txt requirements.txt $(GPU_LOCK) pyproject.toml | $(PYTHON)
	@if [ -e $(OTHER) ]; then \
	    echo "$(VENV) has the TensorFlow for $(if $(GPU_LOCK),CPUs,GPUs). Remove $(VENV), then run make again." >&2; exit 1; \
	fi
	@echo "Installing. The first time takes a minute or more: TensorFlow, Beam and Airflow are large.$(if $(GPU_LOCK), CUDA is 4 GB more.)"
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements-install.txt
	@$(INSTALL_LOCKED) -r requirements.txt $(addprefix -r ,$(GPU_LOCK))
	@$(INSTALL) --no-build-isolation -e .
	@$(PYTHON) -m compileall -q pipeline_ops beam_jobs dags
	@touch $@

$(VENV)/installed-dev: requirements-dev.txt $(INSTALLED)
	@$(INSTALL_LOCKED) -r requirements-dev.txt
	@.ci/packages
	@touch $@

# Whole or absent: it takes its name by a rename.
$(RAW): | $(INSTALLED)
	@$(PYTHON) -m pipeline_ops.examples.digits $@
