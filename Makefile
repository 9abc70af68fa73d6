# Commands of this checkout. GNU make 3.81 syntax; only relative names, so any folder will do.
# `tools/environment.py` makes .venv and the npm part when their pins changed, else does nothing.

SHELL = /bin/sh
PYTHON =
RUN = .venv/bin/python -m
PYTEST = $(RUN) pytest -q
SOLIDITY = contracts/solidity

.PHONY: help environment demo check test tests-parallel tests-serial contracts-test chaos

help:
	@echo "make demo            one job from offer to audit on this machine, with a report"
	@echo "make check           format, lint, types, import rules, unit tests (under two minutes)"
	@echo "make test            everything: check, all test folders, contracts-test"
	@echo "make contracts-test  recompile and compare, forge suites, gas limits"
	@echo "make chaos           the full product of kills (long)"
	@echo "make environment     only make .venv and the npm part; PYTHON=... chooses the Python"

environment:
	@python=`PYTHON='$(PYTHON)' sh tools/find-python` && "$$python" tools/environment.py

demo: environment
	.venv/bin/tallystick demo

check: environment
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	.venv/bin/lint-imports
	$(PYTEST) -n 2 tests/unit

test: check tests-parallel tests-serial contracts-test

tests-parallel: environment
	$(PYTEST) -n 2 tests/property

# Folders that start servers and processes: two at a time would share the machine's clocks.
tests-serial: environment
	$(PYTEST) tests --ignore=tests/unit --ignore=tests/property --ignore=tests/contracts

contracts-test: environment
	$(PYTEST) tests/contracts

chaos: environment
	$(PYTEST) -m chaos --ceilings=off tests
