"""The protocol's numbers and their Solidity twin."""

import re
from pathlib import Path

import pytest

from contracts.governance.parameters import PARAMETERS, check_values
from contracts.terms.errors import Malformed

VALUES = {
    "ChallengeWindow": 5, "MinEpochLength": 1, "MaxEpochCap": 10**15, "AnnouncementWindow": 5,
    "ResponseWindow": 10, "RefundDelay": 40, "SilenceLimit": 60, "EpochLength": 20,
    "UnbondingDelay": 60, "ExecutionWindow": 20, "MaxSlashBps": 10_000, "MaxBountyBps": 2_000,
    "MinBurnBps": 5_000, "NoticePeriod": 20, "AuditFloorPpm": 50_000, "SumAuditPpm": 100_000,
    "RepeatPpm": 200_000, "MarginPpm": 1_250_000, "DeadlineSteps": 4, "VestingSteps": 5,
}  # fmt: skip
SOURCE = Path(__file__).parents[4] / "contracts/solidity/src/Parameters.sol"


def test_check_values__those_of_the_demo__are_accepted() -> None:
    check_values(VALUES)


@pytest.mark.parametrize(
    "changed",
    [
        {"ChallengeWindow": 1},
        {"MaxEpochCap": 10**18 + 1},
        {"RefundDelay": 34},
        {"MinEpochLength": 21},
        {"NoticePeriod": 19},
        {"MinBurnBps": 8_001},
        {"Unknown": 1},
    ],
)
def test_check_values__value_or_relation_out_of_bounds__is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(Malformed):
        check_values(VALUES | changed)


def test_check_values__missing_name__is_refused() -> None:
    with pytest.raises(Malformed):
        check_values({name: value for name, value in VALUES.items() if name != "RepeatPpm"})


def test_parameters__names_and_bounds__are_those_of_the_contract() -> None:
    text = SOURCE.read_text()
    body = text[text.index("enum Key {") :]
    names = re.findall(r"^\s+(\w+),? // ", body[: body.index("}")], re.MULTILINE)
    bounds = dict(re.findall(r"if \(key == Key\.(\w+)\) return \((.+?)\);", text))
    bounds["VestingSteps"] = re.findall(r"return \((.+?)\); // VestingSteps", text)[0]

    def number(literal: str) -> int:
        value, *days = literal.strip().replace("_", "").split()
        return int(float(value)) * (86_400 if days else 1)

    assert [each.name for each in PARAMETERS] == names
    for each in PARAMETERS:
        assert [each.lowest, each.highest] == [number(n) for n in bounds[each.name].split(",")]
