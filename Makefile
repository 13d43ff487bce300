# `make run` shows every small experiment; `make test` checks everything. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-games test-cluster test-sb3 test-wheel soak fuzz lock bench docs format clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ube needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

run: $(READY) ## run every small experiment and write results/quick/index.html
	$(BIN)/ube reproduce quick

test: $(READY) ## lint, type check and the test suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 --dist worksteal

test-slow: $(READY) ## the long checks that `make test` leaves out
	$(BIN)/pytest -q -m slow

test-games: $(READY) ## every one of the 57 Atari games trains and is evaluated
	$(BIN)/pytest -q -n 2 -m games

test-cluster: $(READY) ## suites on a real Ray cluster of two nodes on this machine, one of which is lost
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cluster]'
	$(BIN)/pytest -q tests/suite/test_ray.py

test-sb3: $(READY) ## the example that puts UBE into Stable-Baselines3's DQN, against the real package (PyTorch is large)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[sb3]'
	$(BIN)/pytest -q tests/test_examples.py

test-wheel: $(READY) ## the wheel, built and installed in an empty environment
	$(BIN)/pytest -q -m wheel tests/test_wheel.py

soak: $(READY) ## kills, failing disks, damage, numbers and load, many times (hours); PARTS="kills damage" for some of it
	PYTHONPATH=tests $(BIN)/python -m faults.soak $(PARTS)
	$(BIN)/python tools/reliability.py

fuzz: $(READY) ## a million hostile files and words for every reader; goes on where it was (TRIES=N for fewer)
	PYTHONPATH=tests $(BIN)/python -m fuzz --tries $(or $(TRIES),1000000) --out docs/results/reliability/fuzz.json
	$(BIN)/python tools/reliability.py

lock: $(READY) ## write requirements.lock anew from constraints.txt, and audit licences (PIP_AUDIT=PROGRAM: vulnerabilities too)
	$(BIN)/python tools/lock.py
	$(BIN)/python tools/audit.py --out docs/results/reliability/dependencies.json $(if $(PIP_AUDIT),--pip-audit $(PIP_AUDIT))
	$(BIN)/python tools/reliability.py

bench: $(READY) ## measure solvers and training loops; PEERS=PYTHON with their packages adds PyTorch's
	$(BIN)/python -m benchmarks.sparse_sweep --out docs/results/benchmarks/sparse_sweep.json
	$(BIN)/python -m benchmarks.exact_variance --out docs/results/benchmarks/exact_variance.json
	$(BIN)/python -m benchmarks.training_rate --out docs/results/benchmarks/training_rate.json $(if $(PEERS),--peers $(PEERS))
	$(BIN)/python -m benchmarks.suite_rate --out docs/results/benchmarks/suite_rate.json
	$(BIN)/python -m benchmarks.atari_rate --out docs/results/benchmarks/atari_rate.json $(if $(PEERS),--peers $(PEERS))
	$(BIN)/python -m benchmarks.checkpoint_cost --out docs/results/benchmarks/checkpoint_cost.json

docs: $(READY) ## build the documentation as a site, site/index.html
	$(BIN)/mkdocs build --strict
	@echo Open site/index.html

format: $(READY) ## rewrite the source in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and generated results
	rm -rf $(VENV) results site build dist .pytest_cache .mypy_cache .ruff_cache
