# Every target sets up what it needs in .venv; `make demo` and `make test` are all that a fresh machine has to type.
PYTHON ?= python3
# The folder of the conformance runner and its cases; with QUICK=1 the slow cases are left out.
CONFORMANCE ?= ../shared/conformance
# Where `make serve` listens.
PORT ?= 8000
BIN := .venv/bin
# Installed: what the example project needs, and all that developers need.
DEMO := .venv/demo
READY := .venv/ready
INSTALL := install --quiet --disable-pip-version-check --constraint constraints.txt --editable
SPHINX := $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --fresh-env -c docs -d build/doctrees
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "django-ojs-unique needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
# A Patroni that keeps the lock from a leader that was frozen; what it needs comes with Debian's.
PATRONI := build/patroni
# The pictures of the docs: docs/NAME.py draws docs/images/NAME.svg.
PICTURES := packages processes race states strategies windows workflow

.PHONY: help demo serve test release-check ha mutants conformance lint bench docs linkcheck reference refusals messages tutorial dist upgrade clean

help: ## What can be made
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(DEMO) ## The promise, on your machine: nothing twice, nothing lost
	@$(BIN)/python testproject/manage.py demo

serve: $(DEMO) ## An example shop with the admin, a worker and customers (PORT=8000)
	@$(BIN)/python testproject/manage.py serve --port $(PORT)

test: $(READY) ## SQLite and PostgreSQL, without what is slow: four minutes
	@$(BIN)/python -m tests

release-check: $(READY) ## Everything that takes longer than CI may: run it before a release
	@.ci/release-check

ha: $(READY) $(PATRONI) ## Failovers of clusters of its own: eight minutes
	@$(BIN)/python -m pytest -m ha -s

mutants: $(READY) ## Break the package in one place at a time: a test must fail each time
	@$(BIN)/python -m tests.mutants

conformance: $(READY) ## The conformance cases of the Open Job Spec (CONFORMANCE=folder QUICK=1)
	@CONFORMANCE='$(CONFORMANCE)' QUICK='$(QUICK)' $(BIN)/python -m tests.conformance

lint: $(READY) ## Linter, formatter, types, migrations
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/python -m django makemigrations --check --dry-run --settings tests.settings

bench: $(READY) ## The benchmarks, as ratios to bare loops
	@$(BIN)/python -m benchmarks

docs: $(READY) ## Build the site; a broken link ends it
	@$(SPHINX) -b html . build/docs
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/docs/index.html
	@echo "Built build/docs/index.html"

linkcheck: $(READY) ## Follow the links that lead elsewhere
	@$(SPHINX) -b linkcheck . build/linkcheck

reference: $(READY) ## Write anew the pages and pictures that are written from the code
	@DJANGO_SETTINGS_MODULE=tests.settings PYTHONPATH=. $(BIN)/python docs/commands.py > docs/commands.md
	@PYTHONPATH=. $(BIN)/python docs/options.py > docs/options.md
	@for picture in $(PICTURES); do \
		PYTHONPATH=. $(BIN)/python docs/$$picture.py > docs/images/$$picture.svg || exit 1; done

refusals: $(READY) ## Write anew what is said about mistakes: tests/refusals.md
	@OJS_TEST_RENEW=1 $(BIN)/python -m pytest -q tests/test_refusals.py

messages: $(READY) ## Extract what pages say into the catalogues, and compile these
	@$(BIN)/python -m tests.messages

tutorial: $(READY) ## Follow the README and the tutorial literally
	@$(BIN)/python -m tests.tutorial

dist: $(READY) ## Build dist/, and check it: what a release is made of
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group release
	@rm -rf dist && $(BIN)/python -m build --quiet
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl
	@$(BIN)/pyroma --min 8 dist/*.tar.gz # two points are for an address and a site, which there are not yet
	@$(PYTHON) -m venv --clear build/wheel && build/wheel/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file dist/sbom.cdx.json build/wheel/bin/python
	@cd dist && sha256sum * | tee SHA256SUMS

upgrade: $(READY) ## Renew constraints.txt: the versions that developers and CI install
	@$(BIN)/uv export --quiet --upgrade --all-extras --all-groups --no-hashes --no-emit-project --no-annotate --no-header \
		> constraints.txt && rm uv.lock && git diff --stat -- constraints.txt

$(PATRONI):
	@echo "Downloading Patroni (once) ..."
	-@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(PATRONI) patroni==3.0.4

clean: ## Remove what all of this made
	rm -rf .venv build dist .coverage* htmlcov testproject/*.sqlite3*

# uv resolves and installs in seconds what takes pip a minute.
$(READY): pyproject.toml constraints.txt
	@echo "Installing what developers need (once) ..."
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable . --group dev
	@touch $(DEMO) $(READY)

# A pip of its own would take .venv a third of the demo's time; it gets one where Python has none.
$(DEMO): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Setting up .venv (once) ..."
	@$(PYTHON) -m venv --without-pip .venv
	@$(PYTHON) -m pip --python $(BIN)/python $(INSTALL) '.[demo]' 2> /dev/null || { $(PYTHON) -m venv .venv && $(BIN)/pip $(INSTALL) '.[demo]'; }
	@touch $(DEMO)
