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

.PHONY: demo test test-deep check bench fuzz soak soak-processes audit pins venv frameworks format docs docs-serve tables transcripts pictures

demo: venv
	$(BIN)/gradwire demo

# The quick tier: within five minutes on two cores, what it installs included. Its summary names what
# it leaves to the deep one.
test: venv
	$(PYTEST)

# Everything, or a part of it: SLICE=3/16, SLICE=page, SLICE=packages, SLICE=spark, SLICE=frameworks.
test-deep: $(if $(or $(findstring /,$(SLICE)),$(filter page packages,$(SLICE))),venv,frameworks)
	DEEP=1 SLICE=$(SLICE) $(PYTEST)

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive protocol client server
	$(BIN)/python -m build --wheel --no-isolation --outdir .cache/wheel .
	$(BIN)/check-wheel-contents .cache/wheel
	$(BIN)/python -m pytest --doctest-modules --doctest-glob='*.md' --ignore client/gradwire/spark \
		--ignore client/gradwire/integrations protocol client server README.md $(wildcard docs/*.md)
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

# The pictures of the master's page and of gradwire top in docs; takes Chromium.
pictures: venv
	PYTHONPATH=tests $(BIN)/python -P tests/support/pictures.py docs

docs-serve: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Writes docs/figures.jsonl, which `make tables` makes tables of. CURVES=docs renews the drawings that
# the documentation shows.
CURVES ?= .cache/benchmarks

bench: venv
	$(BIN)/python tests/benchmarks all --curves $(CURVES)

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

# Known vulnerabilities of the pins, and any pin that the database of PyPI does not know. It is not in
# reach everywhere; so `make check` leaves it out.
audit: venv
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# requirements/*.txt: the pins of constraints.txt with the hashes that PyPI has for them. A mirror can
# have fewer files, or its own builds, whose hashes fit nobody else: pip asks none that this machine
# uses, and takes what is empty here for unset.
COMPILE := PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL= PIP_EXTRA_INDEX_URL= PIP_FIND_LINKS= \
	CUSTOM_COMPILE_COMMAND='make pins' $(BIN)/pip-compile --quiet --no-config --upgrade --generate-hashes \
	--allow-unsafe --strip-extras --no-annotate --no-emit-options --constraint constraints.txt

# torch is in none, nor what it brings along: it comes from one of several indexes, whose files differ.
pins: venv
	mkdir -p .cache
	$(COMPILE) --output-file requirements/runtime.txt pyproject.toml
	printf 'build\nhatchling\n' | $(COMPILE) --output-file requirements/build.txt -
	$(COMPILE) --output-file .cache/develop.txt constraints.txt
	awk '/^[^ ]/ { kept = !/^(torch==|triton==|nvidia-|cuda-)/ } kept' .cache/develop.txt > requirements/develop.txt

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) -e '.[dev]'
	touch $@

# What the integrations and Spark work with; the quick tier needs none of it.
frameworks: $(VENV)/frameworks

$(VENV)/frameworks: $(VENV)/installed
	$(INSTALL) -e '.[integrations,spark]'
	touch $@
