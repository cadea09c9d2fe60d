# Every target first builds .venv from requirements/cpu.lock, or finds it current (under a second).
# Variables: PYTHON       a Python 3.11 or 3.12 to build .venv with (found by itself)
#            TORCH_INDEX  PyTorch's CPU wheel index, if pip's own indexes lack torch's CPU build
#            WORKERS      test processes side by side (each may hold an engine: about 3 GiB)
#            ARGS         further arguments for the command, as in: make test ARGS="tests/policy -x"

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1 \
	&& echo $$p && break; done)
BIN := .venv/bin
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: help venv demo test test-fast lint format relock clean distclean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

venv: ## build or update .venv
	@python="$(PYTHON)"; if [ -z "$$python" ]; then \
	echo "No Python 3.11 or 3.12 found. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	"$$python" scripts/bootstrap.py

demo: venv ## one engine chats and embeds, on a real model
	@$(BIN)/orthrus demo $(ARGS)

test: venv ## every test, those on the real engine included
	@$(BIN)/orthrus models get smollm2
	@$(PYTEST) $(ARGS)

test-fast: venv ## the tests that start no engine
	@$(PYTEST) -m "not engine" $(ARGS)

lint: venv ## ruff, the formatter's check and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: venv ## format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

relock: venv ## write requirements/cpu.lock from what .venv holds
	@$(BIN)/python scripts/relock.py

clean: ## remove caches and build output
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	@rm -rf .venv
