"""With which parameters the contracts can be deployed."""

import json
import re
from pathlib import Path

import pytest

from contracts.chain.deploy import parameter_values
from contracts.terms.errors import Malformed

DOCUMENT = Path(__file__).parents[4] / "docs/several-machines.md"


def test_parameter_values__the_example_of_the_document__is_accepted() -> None:
    (example,) = re.findall(r"tallystick deploy .*--parameters '(.+)'", DOCUMENT.read_text())

    changes = json.loads(example)
    parameter_values(changes)

    slashing = changes["announcement_window"] + changes["execution_window"]
    assert changes["unbonding_delay"] > slashing


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch_length": 3600, "challenge_window": 7200},  # a refund before an epoch is judged
        {"min_burn_bps": 4_999},
        {"unbonding": 60},
    ],
)
def test_parameter_values__what_the_contract_would_refuse__is_refused_before_it_costs_gas(
    changes: dict[str, int],
) -> None:
    with pytest.raises(Malformed):
        parameter_values(changes)
