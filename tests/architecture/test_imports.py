"""Do the import rules hold, and do they bite?

A rule that nothing can break is no rule: each is tried on a copy of the packages with one bad
line added.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.architecture.checkout import (
    ROOT,
    copy_to,
    module_name,
    project,
    run,
    run_python,
    sources,
)

LINT = (str(Path(sys.executable).with_name("lint-imports")), "--no-cache")

PURE = (
    "contracts.terms",
    "contracts.governance",
    "training.rounds",
    "training.strategies.port",
    "training.config",
    "training.recipes",
    "training.flops",
    "training.memory",
    "verification.draws.selection",
    "verification.verdicts",
    "verification.draws.economics",
    "verification.draws.odds",
    "verification.audit.audit_file",
    "verification.bisection",
    "market.domain",
)
"""docs/architecture.md 1, also those that later work will add."""

HEAVY = (
    "torch",
    "numpy",
    "web3",
    "eth_account",
    "grpc",
    "fastapi",
    "sqlalchemy",
    "redis",
    "celery",
)

BAD_LINES = (
    ("contracts/terms/ids.py", "import market.domain", "Arrows only downward"),
    ("training/flops.py", "import verification", "Arrows only downward"),
    ("training/worker/run.py", "import verification.auditing.program", "Arrows only downward"),
    ("market/domain/__init__.py", "import tallystick.sdk", "Arrows only downward"),
    ("verification/draws/selection.py", "import verification.docket", "Inside verification"),
    ("verification/docket.py", "import verification.auditing.program", "Inside verification"),
    ("verification/tallies.py", "import training.config", "only auditing knows training"),
    ("contracts/governance/__init__.py", "import torch", "PURE modules"),
    ("contracts/terms/merkle.py", "from os import path", "PURE modules"),
    ("market/domain/__init__.py", "import random", "PURE modules"),
    ("training/config.py", "import time", "PURE modules"),
    ("training/__init__.py", "import contracts.chain", "Only market and tallystick"),
    ("market/adapters/blobs.py", "import blake3", "blake3 is imported in contracts.terms.digest"),
    ("market/service/__init__.py", "import web3", "web3 is imported in contracts.chain only"),
    ("tallystick/audit/__init__.py", "import contracts.chain", "The audit needs the base"),
    (
        "verification/draws/selection.py",
        "import contracts.chain.proofs",
        "the audit knows its proofs",
    ),
    ("contracts/chain/proofs.py", "import web3", "blocks know nothing of web3"),
    ("training/coordinator/run.py", "import torch", "The coordinator handles bytes"),
    ("tallystick/sdk/__init__.py", "import market.service", "know of market only its bodies"),
    ("market/bodies/base.py", "import market.domain.jobs", "HTTP bodies are made of terms"),
    ("training/rounds/machine.py", "import asyncio", "PURE modules"),
    ("training/strategies/port.py", "import training.rounds.state", "down to rounds and strat"),
    ("training/rounds/state.py", "import training.worker.work", "down to rounds and strategies"),
    (
        "training/rounds/machine.py",
        "import training.strategies.every_step.rules",
        "knows of strategies their port",
    ),
    ("tallystick/provider/peer.py", "import tallystick.gym.registry", "Production imports no fake"),
    (
        "market/bootstrap.py",
        "import tests.support.fakes",
        "Production imports no fake",
    ),
    ("market/service/__init__.py", "import market.api.context", "Inside market arrows"),
    ("market/domain/__init__.py", "import market.service.rows", "Inside market arrows"),
    ("market/adapters/__init__.py", "import market.worker.tasks", "Inside market arrows"),
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages that a test may break, if it mends what it broke."""
    return copy_to(tmp_path_factory.mktemp("imports"))


def test_import_rules__this_checkout__are_kept() -> None:
    done = run(*LINT, cwd=ROOT)

    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(("path", "line", "rule"), BAD_LINES)
def test_import_rules__bad_line__breaks_its_rule(
    copied: Path, path: str, line: str, rule: str
) -> None:
    file = copied / path
    good = file.read_text()
    file.write_text(f"{good}\n{line}\n")

    done = run(*LINT, cwd=copied)
    file.write_text(good)

    assert done.returncode == 1, done.stdout
    broken = [text for text in done.stdout.splitlines() if "BROKEN" in text]
    assert any(rule in text for text in broken), done.stdout


def is_below(module: str, parents: Iterable[str]) -> bool:
    """Whether `module` is one of `parents` or inside one."""
    return any(f"{module}.".startswith(f"{parent}.") for parent in parents)


def listed_as_pure() -> list[str]:
    """The modules that the import rule `pure` is about."""
    rules = project()["tool"]["importlinter"]["contracts"]
    listed: list[str] = next(rule for rule in rules if rule["id"] == "pure")["source_modules"]
    return listed


def test_pure_modules__of_the_design__are_all_in_the_rule() -> None:
    modules = {module_name(source) for source in sources()}

    designed = [module for module in PURE if module in modules]
    assert [module for module in designed if not is_below(module, listed_as_pure())] == []


def loaded_by(modules: list[str]) -> set[str]:
    """Which of `HEAVY` a fresh Python has loaded after importing `modules`."""
    code = f"import sys, {', '.join(modules)}; print(*({set(HEAVY)} & set(sys.modules)))"
    return set(run_python(code).split())


def test_packages__imported__load_nothing_heavy() -> None:
    packages = [module_name(source) for source in sources() if source.name == "__init__.py"]

    assert loaded_by(packages) == set()


def test_pure_modules__imported__load_nothing_heavy() -> None:
    names = [module_name(source) for source in sources()]

    assert loaded_by([name for name in names if is_below(name, listed_as_pure())]) == set()


def test_command_line__imported__loads_nothing_heavy() -> None:
    assert loaded_by(["tallystick.cli.main", "tallystick.__main__"]) == set()
