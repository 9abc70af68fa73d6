"""Do the Solidity suites pass, and does gas stay within its limits?

One forge run serves all tests here. The limits of gas stand in
`test/Gas.t.sol`, where each fails the run.
"""

import re

import pytest

from tests.contracts.toolchain import SOLIDITY, ForgeTest, forge_tests

LIMITS = {
    "open by the poster": 73_000,
    "claim, later, 1000 accounts": 55_000,
    "claimAll, later, an account of 256": 17_500,
    "life, daily grants and claims, a contribution": 340,
    "life, one grant and one claim, a contribution": 120,
    "anchor": 45_000,
}

SUITES = sorted(
    name
    for path in (SOLIDITY / "test").glob("*.t.sol")
    for name in re.findall(r"^contract (\w+Test) is", path.read_text(), re.MULTILINE)
)

PROPERTIES = (
    "invariant_J1__tokens_cover_balances_stakes_and_budgets()",
    "invariant_J2__limits_are_committed_and_cover_what_is_claimed_or_earned()",
    "invariant_J3__best_seal_pays_up_to_the_limit()",
    "invariant_J4__limits_grow_as_the_token_bucket_lets_them()",
    "invariant_J5__poster_gets_no_more_than_was_not_earned()",
    "invariant_J6_J7__stake_comes_free_and_nothing_falls()",
)


def _of(suite: str) -> list[ForgeTest]:
    return [each for each in forge_tests() if each.suite == suite]


def _gas() -> dict[str, tuple[int, int]]:
    """Gas used and limit by what was done."""
    found: dict[str, tuple[int, int]] = {}
    for test in _of("GasTest"):
        for log in test.logs:
            what, limit, used = re.fullmatch(r"(.*) \| (\d+): (\d+)", log).groups()  # type: ignore[union-attr]  # a log of another form fails here
            found[what] = (int(used), int(limit))
    return found


@pytest.mark.parametrize("suite", SUITES)
def test_forge__suite__passes(suite: str) -> None:
    tests = _of(suite)

    failed = [f"{each.name}: {each.reason}" for each in tests if not each.passed]

    assert tests, f"forge ran no test of {suite}"
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", PROPERTIES)
def test_forge__invariant__holds_over_many_calls(name: str) -> None:
    (test,) = [each for each in forge_tests() if each.name == name]

    assert test.passed, test.reason
    assert test.runs >= 500


def test_gas__limits_of_the_design__are_the_ones_enforced() -> None:
    enforced = {what: limit for what, (_, limit) in _gas().items()}

    assert {what: enforced[what] for what in LIMITS} == LIMITS
