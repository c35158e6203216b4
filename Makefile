# make demo and make test set everything up on a machine that has python3 (with venv), pip and make.
#   VENV=path       another virtual environment (an existing one is used as it is)
#   CONSTRAINTS=    nothing pinned: keep the torch that the environment already has
#   WORKERS=n       test processes

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
WORKERS ?= 2

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
WANTED := pyproject.toml $(CONSTRAINTS)
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DOCS := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.PHONY: help demo test lint types imports pytest coverage browser docs bench format constraints lock audit canary soak clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(INSTALLED) ## set up; write a text that corrects itself, repair a paragraph, fill a gap; leave demo.html
	$(BIN)/scdd demo

test: lint types imports pytest ## set up, lint, types, import rules, and the default test suite

lint: $(INSTALLED_DEV) ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV) ## mypy, strict
	$(BIN)/mypy

imports: $(INSTALLED_DEV) ## import-linter: rooms open downwards only
	$(BIN)/lint-imports

pytest: $(INSTALLED_DEV) ## the default test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

coverage: $(INSTALLED_DEV) ## the same, and which lines it ran
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term

browser: ## install Debian's chromium for the playground's tests; needs root and apt-get
	@if [ -n "$$CHROMIUM" ] || command -v chromium || command -v google-chrome; then :; \
	elif [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; \
	else echo "No root or no apt-get: install chromium by hand, or set CHROMIUM to the path of a browser."; exit 1; fi

docs: $(INSTALLED_DOCS) ## build the guides and the reference into site/; open site/index.html
	$(BIN)/python tools/docs_site.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: ## list the benchmarks
	@found=$$(ls benchmarks/*.py 2>/dev/null); \
	if [ -z "$$found" ]; then echo "benchmarks/ holds no benchmark."; else \
	for file in $$found; do printf '  %s\n      %s\n' "$(BIN)/python $$file" "$$(sed -n '1s/^"""//p' $$file)"; done; fi

format: $(INSTALLED_DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: $(INSTALLED_DEV) ## pin the versions of this environment in constraints.txt
	$(BIN)/python tools/constraints.py

lock: | $(BIN)/python ## build/lock: requirements with hashes and a bill of materials, for this platform; EXTRAS="train serve"
	$(BIN)/python tools/lock.py build/lock $(EXTRAS)

audit: lock ## look the locked packages up among known vulnerabilities; asks the network
	$(BIN)/python -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --disable-pip --no-deps -r build/lock/requirements.lock

canary: ## each extra's tests with the newest versions that resolve, in fresh environments; EXTRAS="gif serve" for some
	$(PYTHON) tools/canary.py $(EXTRAS)

soak: $(INSTALLED_DEV) ## attack for a long time and print one table; goes on where it was stopped; SECONDS=600, PARTS="kills,recipes"
	$(BIN)/python tools/soak.py --seconds $(or $(SECONDS),3600) $(if $(PARTS),--parts $(PARTS))

clean: ## remove caches and build output
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An order-only prerequisite: the interpreter's date says nothing about what is installed.
$(INSTALLED): $(WANTED) | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(INSTALLED_DEV): $(WANTED) | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(INSTALLED)

$(INSTALLED_DOCS): $(WANTED) | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	@touch $@
