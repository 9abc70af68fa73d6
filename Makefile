# Commands of this checkout. GNU make 3.81 syntax; only relative names, so any folder will do.
# `tools/environment.py` makes .venv and the npm parts when their pins changed, else does nothing.

SHELL = /bin/sh
PYTHON =
ALSO =
RUN = .venv/bin/python -m
PYTEST = $(RUN) pytest -q
# e2e and browser one test at a time in a stream each, the rest by files (tests/conftest.py).
STREAMS = --dist loadfile --no-loadscope-reorder

.PHONY: help environment demo check test gate tests contracts-test root-test nightly \
	format lint types imports unit

help:
	@echo "make demo            one job from offer to audit on this machine, with a report"
	@echo "make check           format, lint, types, import rules, unit tests (under two minutes)"
	@echo "make test            everything that a change must pass: check, and all test folders"
	@echo "make contracts-test  recompile and compare, forge suites, gas limits"
	@echo "make root-test       the tests that need root; for root"
	@echo "make nightly         all kills, mutants, long histories, random examples, benchmarks (long)"
	@echo "make environment     only make .venv and the npm parts; PYTHON=... chooses the Python"
	@echo "make -k check        as check, but goes on after a failure"

environment:
	@python=`PYTHON='$(PYTHON)' sh tools/find-python` && "$$python" tools/environment.py $(ALSO)

demo: environment
	.venv/bin/tallystick demo

check: format lint types imports unit

# Style and types beside the tests, which wait more than they compute: three streams fill two cores.
test: environment
	$(MAKE) -j 2 gate

gate: tests types format lint imports

tests: environment
	$(PYTEST) -n 3 $(STREAMS) tests

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

contracts-test: environment
	$(PYTEST) -n 2 --dist worksteal -m '' --ignore=tests/contracts/test_mutants.py \
		--ignore=tests/contracts/test_analysis.py tests/contracts

root-test: environment
	$(PYTEST) -m 'root and not nightly' tests

nightly: ALSO = nightly
nightly: environment
	TESTS_PROFILE=nightly $(PYTEST) -n 2 -m '' tests/property
	$(RUN) bench --quick
	$(PYTEST) -n 2 $(STREAMS) -m nightly --ignore=tests/property tests
