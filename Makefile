# Every target sets up what it needs in .venv; `make demo` and `make test` are all that a fresh machine has to type.
PYTHON ?= python3
# The folder of the conformance runner and its cases; with QUICK=1 the slow cases are left out.
CONFORMANCE ?= ../shared/conformance
# Where `make serve` listens.
PORT ?= 8000
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo serve test conformance lint bench clean

demo: $(READY)
	@$(BIN)/python testproject/manage.py demo

serve: $(READY)
	@$(BIN)/python testproject/manage.py serve --port $(PORT)

test: $(READY)
	@$(BIN)/python -m tests

conformance: $(READY)
	@CONFORMANCE='$(CONFORMANCE)' QUICK='$(QUICK)' $(BIN)/python -m tests.conformance

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/python -m django makemigrations --check --dry-run --settings tests.settings

bench: $(READY)
	@$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist .coverage* htmlcov testproject/*.sqlite3*

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "django-ojs-unique needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up .venv (once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)
