# Commands of this checkout. GNU make 3.81 syntax; only relative names, so any folder will do.
# `tools/environment.py` makes .venv and the npm parts when their pins changed, else does nothing.

SHELL = /bin/sh
PYTHON =
RUN = .venv/bin/python -m
PYTEST = $(RUN) pytest -q
# e2e one test at a time in one stream, the rest by files in the others (tests/conftest.py).
STREAMS = --dist loadfile --no-loadscope-reorder

.PHONY: help environment demo check test contracts-test chaos \
	format lint types imports unit property services

help:
	@echo "make demo            one job from offer to audit on this machine, with a report"
	@echo "make check           format, lint, types, import rules, unit tests (under two minutes)"
	@echo "make test            everything: check, all test folders, contracts-test"
	@echo "make contracts-test  recompile and compare, forge suites, gas limits"
	@echo "make chaos           the full product of kills (long)"
	@echo "make environment     only make .venv and the npm parts; PYTHON=... chooses the Python"
	@echo "make -k check        as check, but goes on after a failure"

environment:
	@python=`PYTHON='$(PYTHON)' sh tools/find-python` && "$$python" tools/environment.py

demo: environment
	.venv/bin/tallystick demo

check: format lint types imports unit

test: check property services contracts-test

format: environment
	$(RUN) ruff format --check .

lint: environment
	$(RUN) ruff check .

types: environment
	$(RUN) mypy

imports: environment
	.venv/bin/lint-imports

unit: environment
	$(PYTEST) -n 2 tests/unit

property: environment
	$(PYTEST) -n 2 tests/property

# e2e waits more than it computes: three streams fill two cores.
services: environment
	$(PYTEST) -n 3 $(STREAMS) tests --ignore=tests/unit --ignore=tests/property --ignore=tests/contracts

contracts-test: environment
	$(PYTEST) -n 2 --dist worksteal tests/contracts

chaos: environment
	$(PYTEST) -n 2 $(STREAMS) -m chaos --ceilings=off tests
