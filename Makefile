# From a bare clone: `make run`, `make test`, `make check`, `make bench`. Flags go in ARGS: make run ARGS="--port 9000".
# Needs python3 (3.11 or newer), pip and make; everything else goes into .venv, and what is done is remembered in .stamps.

PYTHON ?= python3
ARGS ?=
MODE ?= sinks

VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
# A virtual environment made without ensurepip has no pip of its own; then the outer pip works on it.
PIP = $$($(BIN)/python -m pip --version >/dev/null 2>&1 && echo $(BIN)/python -m pip || echo $(PYTHON) -m pip --python $(BIN)/python)
CHAOS_sinks := tests/spark/test_exactly_once.py
CHAOS_log := tests/spark/test_log_under_kills.py
CHAOS_cluster := tests/cluster/test_cluster.py
CHAOS_storm := tests/faults/test_storm.py tests/ring/test_storm.py
CHAOS_workers := tests/workers/test_faults.py tests/workers/test_balance.py
CHAOS = $(or $(CHAOS_$(MODE)),$(error MODE is sinks, log, cluster, workers or storm, not $(MODE)))
PYTEST_ARGS = pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 10
PYTEST = $(BIN)/python -m $(PYTEST_ARGS)
INSTALL = $(PIP) install --quiet --disable-pip-version-check --constraint constraints.txt

# Some images set this. Then every process that a test starts would compile all of its modules.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run demo test-fast test test-all chaos fuzz check format docs bench dist npm prerequisites clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 22

run: $(STAMPS)/run ## start a server in demo mode; ARGS="--port 9000" passes flags to `ropewalk serve`
	@$(BIN)/ropewalk serve --demo $(ARGS)

demo: $(STAMPS)/demo ## the whole road: server, traffic, archive, figures, audit, picture; ARGS="--seconds 10 --out somewhere"
	@$(BIN)/python examples/whole_road.py $(ARGS)

test-fast: $(STAMPS)/dev ## the tests that need no other process: unit, property, conformance in process, docs
	$(PYTEST) --tier fast $(ARGS)

test: $(STAMPS)/dev prerequisites $(STAMPS)/npm ## the tests to pass before a change; installs what they need; ARGS="-k history" goes to pytest
	$(PYTEST) --tier standard $(ARGS)

test-all: $(STAMPS)/dev prerequisites $(STAMPS)/npm ## everything: workers, rings, clusters, storms, kills, packages; prints branch coverage
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m $(PYTEST_ARGS) --tier all $(ARGS)
	@$(BIN)/coverage combine --quiet && printf 'branch coverage: ' && $(BIN)/coverage report

chaos: $(STAMPS)/dev prerequisites ## kill everything 24 times (CHAOS_KILLS=) and prove exactly once; MODE=log: 200 cycles (CHAOS_CYCLES=) over the whole log; MODE=cluster: three nodes for minutes (CLUSTER_SECONDS=) on each engine; MODE=workers: the processes of one node (WORKERS_SECONDS=), and their shares of many connections (WORKERS_CONNECTIONS=); MODE=storm: clients of every kind that are cut off all the time (STORM_CLIENTS=, STORM_REQUESTS=)
	CHAOS_KILLS=$${CHAOS_KILLS:-24} CHAOS_CYCLES=$${CHAOS_CYCLES:-200} \
	CLUSTER_CLIENTS=$${CLUSTER_CLIENTS:-300} CLUSTER_SECONDS=$${CLUSTER_SECONDS:-180} \
	WORKERS_CLIENTS=$${WORKERS_CLIENTS:-200} WORKERS_SECONDS=$${WORKERS_SECONDS:-120} \
	STORM_CLIENTS=$${STORM_CLIENTS:-400} STORM_REQUESTS=$${STORM_REQUESTS:-500} \
	WORKERS_CONNECTIONS=$${WORKERS_CONNECTIONS:-20000} $(BIN)/python -m pytest -s $(CHAOS) $(ARGS)

fuzz: $(STAMPS)/dev prerequisites ## a million damaged frames of Broky (FUZZ_FRAMES=), and the same for the verifier of FlatBuffers for C++
	FUZZ_FRAMES=$${FUZZ_FRAMES:-1000000} $(BIN)/python -m pytest -s tests/property/test_broky_fuzz.py $(ARGS)

check: $(STAMPS)/dev ## ruff, mypy --strict, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMPS)/dev ## put the code into its usual form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMPS)/dev ## write the reference pages that are drawn from the code
	@mkdir -p docs/reference
	$(BIN)/ropewalk config --config_path= --format markdown > docs/reference/settings.md
	$(BIN)/ropewalk journal columns --format markdown > docs/reference/journal-rows.md
	$(BIN)/ropewalk pipeline list --config_path= --format markdown > docs/reference/jobs.md

bench: $(STAMPS)/dev ## measure on this machine; writes benchmarks/results/latest.json
	$(BIN)/python -m benchmarks $(ARGS)

dist: $(STAMPS)/dist ## build a wheel and a source distribution, and dist/ropewalk: one file that runs without Python
	$(BIN)/python -m build --no-isolation --outdir dist . >build.log 2>&1 || { cat build.log >&2; exit 1; }
	@rm -f build.log
	$(BIN)/python distribution/one_file.py dist/ropewalk

npm: $(STAMPS)/npm ## build the npm package of the JavaScript client: dist/ropewalk-client-VERSION.tgz
	$(PYTHON) distribution/npm_package.py dist

clean: ## remove everything that was installed or built here
	rm -rf $(VENV) $(STAMPS) build dist src/*.egg-info tests/clients/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

prerequisites:
	@sh tests/install_prerequisites.sh

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=... chooses one)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --clear --without-pip $(VENV)

$(STAMPS)/run: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing ropewalk into $(VENV)"
	@$(INSTALL) --editable .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing ropewalk with Spark into $(VENV)"
	@$(INSTALL) --editable '.[demo]'
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run

$(STAMPS)/dist: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing ropewalk and what packages it into $(VENV)"
	@$(INSTALL) --editable '.[dist]'
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run

$(STAMPS)/dev: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing ropewalk and its development tools into $(VENV)"
	@$(INSTALL) --editable '.[dev]'
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run $(STAMPS)/demo $(STAMPS)/dist

# Without npm there is nothing to install: the tests that need it say so themselves.
$(STAMPS)/npm: tests/clients/package.json tests/clients/package-lock.json | prerequisites
	@if command -v npm >/dev/null; then npm ci --prefix tests/clients --no-audit --no-fund && mkdir -p $(STAMPS) && touch $@; fi
