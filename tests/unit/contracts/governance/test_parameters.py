"""The protocol's numbers and their Solidity twin."""

import re
from pathlib import Path

import pytest

from contracts.chain.wrappers.parameters import KEYS
from contracts.governance.parameters import PARAMETERS, check_values
from contracts.terms.errors import Malformed

VALUES = {
    "NoticePeriod": 20, "AuditFloorPpm": 50_000, "SumAuditPpm": 100_000, "RepeatPpm": 200_000,
    "MarginPpm": 1_250_000, "DeadlineSteps": 4, "VestingSteps": 5,
}  # fmt: skip
SOURCE = Path(__file__).parents[4] / "contracts/solidity/src/Parameters.sol"


def test_check_values__those_of_the_demo__are_accepted() -> None:
    check_values(VALUES)


@pytest.mark.parametrize(
    "changed", [{"NoticePeriod": 0}, {"AuditFloorPpm": 10**6 + 1}, {"Unknown": 1}]
)
def test_check_values__out_of_bounds_or_unknown__is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(Malformed):
        check_values(VALUES | changed)


def test_check_values__missing_name__is_refused() -> None:
    with pytest.raises(Malformed):
        check_values({name: value for name, value in VALUES.items() if name != "RepeatPpm"})


def test_parameters__names_and_keys__are_those_of_the_contract() -> None:
    """Shared vectors hold the bounds."""
    text = SOURCE.read_text()
    body = text[text.index("enum Key {") :]

    names = re.findall(r"^\s+(\w+),? // ", body[: body.index("}")], re.MULTILINE)

    assert [each.name for each in PARAMETERS] == names
    assert [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names] == list(KEYS)
