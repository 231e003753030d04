# Every target makes or repairs .venv by itself. `make help` lists the targets.
#   ARGS=…    passed on:  make demo ARGS=--keep   make test ARGS="-k publish -x"
#   PYTHON=…  the Python (3.11 or newer) to build .venv with; found by itself when left out

SHELL := /bin/sh
BIN := .venv/bin
ARGS ?=
PYTHON ?=
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help venv demo test check format bench lock clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 10

venv: ## Make or repair .venv with the exact tested versions
	@python=$$(tools/find-python) && "$$python" tools/environment.py

demo: venv ## Run the main job on the embedded default (ARGS=--keep leaves it running)
	@$(BIN)/surehook demo $(ARGS)

test: venv ## Run the tests, a process for each core (ARGS="-n0 -s -k publish" for one)
	@$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal $(ARGS)

check: venv ## Lint, format, types, layers and docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/support tests/conftest.py tools docs/check.py
	$(BIN)/lint-imports
	$(BIN)/python tools/reference.py --check
	$(BIN)/python docs/check.py

format: venv ## Apply the formatter and the safe fixes of the linter
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: venv ## Run the benchmarks (ARGS="NAME --json FILE" for one)
	@$(BIN)/python -m bench $(ARGS)

lock: venv ## Choose new exact versions within pyproject.toml and write requirements.lock
	@$(BIN)/python tools/lock.py $(ARGS)

clean: ## Remove .venv, caches and build results
	rm -rf .venv .cache build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	  .import_linter_cache .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
