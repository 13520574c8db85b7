# Every target creates .venv when it is missing or older than the dependency lists.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
RECORDS ?= outputs/demo
# One thread in each of two processes: the models of the tests are too small for more.
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --quiet --numprocesses 2 --dist loadfile

.PHONY: demo test lint check front evidence figures clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## train a head on the embedded pair, evaluate, draw
	$(RUN) -m diversed.demo

front: $(READY)  ## the evidence: heads of three lambdas and five seeds against the static front
	$(RUN) -m diversed.evidence

evidence: $(READY)  ## the same with controls, rivals, rules by hand, the dial and ablations
	$(RUN) -m diversed.evidence --all

figures: $(READY)  ## execute the notebooks of analysis/ on the records in RECORDS, into analysis/out/
	$(RUN) -m diversed.notebooks --records '$(RECORDS)'

lint: $(READY)  ## lint and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

check: lint  ## lint, types, unit tests
	$(PYTEST) tests/unit

test: $(READY)  ## everything but slow, gpu and network tests
	$(PYTEST)

clean:
	rm -rf $(VENV)
