"""With which numbers and times the contracts can be deployed."""

import json
import re
from pathlib import Path

import pytest

from contracts.chain.deploy import escrow_times
from contracts.governance.escrow import EscrowTimes
from contracts.terms.errors import Malformed

DOCUMENT = Path(__file__).parents[4] / "docs/several-machines.md"
DEVELOPMENT, SEPOLIA, DAY = 31337, 11155111, 86_400


def test_parameters_and_times__the_example_of_the_document__are_accepted() -> None:
    (example,) = re.findall(r"tallystick deploy .*--times '(.+?)'", DOCUMENT.read_text())

    assert escrow_times(SEPOLIA, json.loads(example)).tail > 7 * DAY


def test_escrow_times__nothing_said__are_long_where_money_is_real() -> None:
    assert escrow_times(DEVELOPMENT, {}).tail < 600
    assert escrow_times(SEPOLIA, {}) == EscrowTimes(DAY, 2 * DAY, DAY, 7 * DAY)


@pytest.mark.parametrize(
    ("chain_id", "changes"),
    [
        (SEPOLIA, {"announce": 2 * DAY - 1}),
        (SEPOLIA, {"margin": 10 * DAY}),  # the tail would not cover it
        (DEVELOPMENT, {"tail": 90}),
        (DEVELOPMENT, {"margin": 0}),
        (DEVELOPMENT, {"tail": 2**40}),
        (DEVELOPMENT, {"window": 60}),
    ],
)
def test_escrow_times__too_short_or_unknown__are_refused(
    chain_id: int, changes: dict[str, int]
) -> None:
    with pytest.raises(Malformed):
        escrow_times(chain_id, changes)
