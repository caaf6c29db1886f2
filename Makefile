# Two commands on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Recipes never ask pip to update itself or to warn about it.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types tests clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo-ready
	$(BIN)/patchslim demo --out demo

test: lint types tests

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test-ready
	$(BIN)/mypy

tests: $(VENV)/.test-ready
	$(BIN)/pytest --numprocesses auto --dist worksteal

# The demo needs digits and pictures; the tests need everything.
$(VENV)/.demo-ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[digits,viz]'
	touch $@

$(VENV)/.test-ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all]'
	touch $@ $(VENV)/.demo-ready

clean:
	rm -rf $(VENV) demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
