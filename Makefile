# Two commands: `make demo` and `make test`. Both do the set-up first; re-running it takes a moment.
ARGS ?=
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup check test test-all demo lock settings clean

setup:
	@bash deploy/setup.sh

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layout.py

# Of the slow kinds (crash, soak, browser, deployment) one point each; test-all runs every one.
test: setup
	$(BIN)/pytest $(ARGS)

test-all: setup
	$(BIN)/pytest --every-point $(ARGS)

demo: setup
	@$(BIN)/ratchet demo $(ARGS)

# Resolve pyproject.toml anew into deploy/locks/cpu.txt.
lock: setup
	@bash deploy/setup.sh lock

# Write .env.example from the settings classes.
settings: setup
	$(BIN)/python -m deploy.env_example > .env.example

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis
