"""What halmos proves of JobEscrow, and what slither finds in all contracts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.toolchain import SOLIDITY, analyse

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

EXPLAINED = {
    ("arbitrary-send-erc20", "open"): "the poster calls, or has signed this very header",
    ("incorrect-equality", "endOf"): "zero means that the account has not ended",
    ("incorrect-equality", "release"): "zero means that the account has not ended",
    ("incorrect-equality", "_unschedule"): "zero means that nothing is scheduled",
    ("incorrect-equality", "anchor"): "one batch a block",
    ("incorrect-equality", "record"): "zero means no batch; a block has no hash while it is made",
}
"""High and medium findings by detector and function, and why each is none."""


def test_halmos__each_rule_of_the_arithmetic__holds_for_all_amounts(tmp_path: Path) -> None:
    report = tmp_path / "halmos.json"
    printed = analyse(
        "halmos", "--contract", "Proofs", "--forge-build-out", "out/analysis",
        "--solver-timeout-assertion", "0", "--json-output", str(report),
    )  # fmt: skip

    assert report.exists(), printed
    (results,) = json.loads(report.read_text())["test_results"].values()
    failed = [each["name"] for each in results if each["exitcode"] != 0]
    source = (SOLIDITY / "proofs" / "Proofs.sol").read_text()
    assert failed == [], printed
    assert len(results) == source.count("function check_") > 0


def test_slither__high_and_medium_findings__are_those_that_are_explained(tmp_path: Path) -> None:
    report = tmp_path / "slither.json"
    printed = analyse(
        "slither", ".", "--exclude-informational", "--exclude-optimization", "--exclude-low",
        "--filter-paths", "node_modules|proofs", "--json", str(report),
    )  # fmt: skip

    assert report.exists(), printed
    said = json.loads(report.read_text())
    assert said["success"], said["error"]
    found = Counter(of(each) for each in said["results"].get("detectors", ()))
    assert found == {key: 2 if key[1] == "record" else 1 for key in EXPLAINED}


def of(finding: dict[str, Any]) -> tuple[str, str]:
    """Detector and function of a finding."""
    return (finding["check"], finding["elements"][0]["name"])
