# Every target works on a fresh machine: it makes .venv first and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where it is set, as in some containers, each of the hundreds of processes that tests start compiles
# all it imports.
unexport PYTHONDONTWRITEBYTECODE

# Modules are compiled when they are first imported, and most never are.
INSTALL := $(BIN)/pip install --quiet --no-compile -c constraints.txt

PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadscope --no-loadscope-reorder

.PHONY: demo test test-deep check bench fuzz soak soak-processes audit pins venv frameworks format docs docs-serve pictures tables transcripts

demo: venv
	$(BIN)/gradwire demo

# The quick tier: within five minutes on two cores, what it installs included. Its summary names what
# it leaves to the deep one.
test: venv
	$(PYTEST)

# Everything, or a part of it: SLICE=3/8.
test-deep: frameworks
	DEEP=1 SLICE=$(SLICE) $(PYTEST)

check: frameworks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive protocol client server
	$(BIN)/python -m build --wheel --no-isolation --outdir .cache/wheel .
	$(BIN)/check-wheel-contents .cache/wheel
	$(BIN)/python -m pytest --doctest-modules --doctest-glob='*.md' protocol client server README.md \
		$(wildcard docs/*.md)
	$(MAKE) --no-print-directory docs

# The documentation site. A link that leads nowhere fails it, and so does a page that would ask another
# host for anything. With --quiet, warnings are not counted, and --strict lets everything pass.
docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Tables between begin and end marks in docs; -P, as tests/unit has a folder benchmarks as well.
tables: venv
	PYTHONPATH=tests $(BIN)/python -P tests/unit/test_documentation.py
	PYTHONPATH=tests $(BIN)/python -P tests/session/test_mistakes.py

# Plays what docs/transcripts.md shows.
transcripts: venv
	PYTHONPATH=tests $(BIN)/python -P tests/integration/test_transcripts.py

# The pictures of the master's page in docs; takes Chromium.
pictures: venv
	PYTHONPATH=tests $(BIN)/python -P tests/support/pictures.py docs

docs-serve: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# CURVES=docs renews the drawings that the documentation shows.
CURVES ?= .cache/benchmarks

bench: venv
	$(BIN)/python tests/benchmarks all --json .cache/benchmarks/figures.jsonl \
		--pictures .cache/benchmarks --curves $(CURVES)

# Until it is stopped; the tests run each target for a bounded count.
fuzz: venv
	$(BIN)/python tests/fuzz

# A master and workers of which always some are killed or stand still. Fails where an update is lost,
# or where memory or open files of a process grow; `make test-deep` does it for a minute.
SECONDS ?= 3600
SEED ?= 1

soak-processes: venv
	$(BIN)/python tests/chaos --seconds $(SECONDS) --seed $(SEED)

# Simulated histories that no test has played: SEEDS=FIRST:LAST, or FIRST: until it is stopped. Also
# 5:, --long or --crowd: SEEDS="0:100 --crowd".
SEEDS ?= 2000:

soak: venv
	$(BIN)/python tests/simulation $(SEEDS)

# Known vulnerabilities of the pins. It asks databases that are not in reach everywhere, and ends
# with 3 where they are not; so `make check` leaves it out.
audit: venv
	$(BIN)/python tests/supply_chain audit

# requirements/*.txt: the pins of constraints.txt with the hashes that PyPI has for them.
pins: venv
	$(BIN)/python tests/supply_chain pins

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) -e '.[dev]'
	touch $@

# What the integrations, Spark and docs/logging.md work with; the quick tier needs none of it.
frameworks: $(VENV)/frameworks

$(VENV)/frameworks: $(VENV)/installed
	$(INSTALL) -e '.[integrations,spark,trackers]'
	touch $@
