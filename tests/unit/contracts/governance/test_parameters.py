"""The protocol's numbers and their Solidity twin."""

import re
from pathlib import Path

import pytest
from pydantic.alias_generators import to_pascal

from contracts.governance.parameters import PARAMETERS, parameter_values
from contracts.terms.errors import Malformed

SOURCE = Path(__file__).parents[4] / "contracts/solidity/src/Parameters.sol"


def test_parameter_values__one_changed__is_in_its_place_among_the_defaults() -> None:
    assert parameter_values({"repeat_ppm": 50_000})[:5] == [20, 50_000, 100_000, 50_000, 1_250_000]


@pytest.mark.parametrize(
    "changes",
    [{"notice_period": 0}, {"audit_floor_ppm": 1}, {"audit_floor_ppm": 10**6 + 1}, {"vesting": 60}],
)
def test_parameter_values__what_the_contract_would_refuse__is_refused_before_it_costs_gas(
    changes: dict[str, int],
) -> None:
    with pytest.raises(Malformed):
        parameter_values(changes)


def test_parameters__names__are_those_of_the_contract() -> None:
    """Shared vectors hold the bounds."""
    text = SOURCE.read_text()
    body = text[text.index("enum Key {") :]

    names = re.findall(r"^\s+(\w+),? // ", body[: body.index("}")], re.MULTILINE)

    assert [to_pascal(each.name) for each in PARAMETERS] == names
