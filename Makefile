# Every target sets up what it needs in .venv; `make demo` and `make test` are all that a fresh machine has to type.
PYTHON ?= python3
# The folder of the conformance runner and its cases; with QUICK=1 the slow cases are left out.
CONFORMANCE ?= ../shared/conformance
# Where `make serve` listens.
PORT ?= 8000
BIN := .venv/bin
READY := .venv/ready
SPHINX := $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --fresh-env -c docs -d build/doctrees

.PHONY: demo serve test conformance lint bench docs linkcheck reference tutorial clean

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

# The site; a broken link, anchor or picture, or a page that the index lacks, ends it. What leads elsewhere: `make linkcheck`.
docs: $(READY)
	@$(SPHINX) -b html . build/docs
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/docs/index.html
	@echo "Built build/docs/index.html"

linkcheck: $(READY)
	@$(SPHINX) -b linkcheck . build/linkcheck

# The pages and pictures that are written from the code.
reference: $(READY)
	@DJANGO_SETTINGS_MODULE=tests.settings PYTHONPATH=. $(BIN)/python docs/commands.py > docs/commands.md
	@PYTHONPATH=. $(BIN)/python docs/diagram.py > docs/images/states.svg

tutorial: $(READY)
	@$(BIN)/python -m tests.tutorial

clean:
	rm -rf .venv build dist .coverage* htmlcov testproject/*.sqlite3*

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "django-ojs-unique needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up .venv (once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)
