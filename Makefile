# Everything runs from a fresh clone: each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Files of tests are dealt to so many processes, each with ranks of its own.
JOBS ?= 2
MARKS := not full and not gpu
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Bytecode is kept: else each of the hundreds of processes that tests start compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo docs test test-all tests lint bench clean

install: $(STAMP)

# The pins make pip pick a CPU build of torch; pip's own upgrade is not needed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[hf,fast,dev]"
	$(BIN)/python -m compileall -q meshwright
	touch $(STAMP)

demo: install
	$(BIN)/python examples/demo.py

# The pages of docs/ and a reference of the API, as a site in out/site.
docs: install
	$(BIN)/python docs/build_site.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mypy has one thread: the tests begin meanwhile.
test: install
	+$(MAKE) -j 2 lint tests

test-all: install
	+$(MAKE) -j 2 lint tests MARKS="not gpu"

tests: install
	$(PYTEST) -m "$(MARKS)"

# The quick ones; each bench is a command of its own (`ls bench`), says what it needs, and writes JSON to out/.
bench: install
	$(BIN)/python bench/layouts.py
	$(BIN)/python bench/capture.py
	$(BIN)/python bench/profile_cost.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
