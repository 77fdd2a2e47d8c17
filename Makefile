# `make` lists the targets. Everything that needs Python sets up .venv first, and again only when the pins change.
#
#   make demo PYTHON=python3.12     another interpreter for a new environment
#   make test ARGS="-k ditto -x"    more arguments for pytest
#   make test WORKERS=8             more test processes; by default one more than two cores, since some tests wait

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 3
ARGS ?=

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(READY) ## set up, then run a small comparison of methods
	@$(BIN)/idiolect demo

.PHONY: test
test: lint types ## lint, types and all tests: what CI runs
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
		$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: bench
bench: $(READY) ## all speed benchmarks, as ratios; takes about an hour on two quiet cores
	cd benchmarks && for each in engines methods scaling server store; do \
		../$(BIN)/python $$each.py --out ../results/bench || exit 1; done

.PHONY: pages
pages: $(READY) ## write the documents' tables of methods from the methods
	@$(BIN)/python scripts/pages

.PHONY: docs
docs: $(READY) ## build the site into site/, warnings as errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html, which needs no network and no server"

.PHONY: lint
lint: $(READY) ## check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: format
format: $(READY) ## repair style and format where that is safe
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: types
types: $(READY) ## check the types
	$(BIN)/mypy

.PHONY: setup
setup: $(READY) ## make .venv with the pinned packages and this one, editable

$(READY): requirements.lock pyproject.toml
	@scripts/setup
	@touch $@

.PHONY: lock
lock: ## pin the newest versions that pyproject.toml allows (TORCH=x.y.z for another torch)
	@TORCH=$(TORCH) scripts/lock

.PHONY: clean
clean: ## remove caches and builds; keeps .venv, runs and results
	rm -rf build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find . -path ./.venv -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## clean, and remove .venv too
	rm -rf .venv
