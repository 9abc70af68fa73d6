"""Would the Solidity suites notice? One line of the contracts is broken at a time.

Each mutant names the property that it violates and the forge test that must fail for it. The
mutated sources are compiled by the quick pipeline into `out/mutants`; the tests are the same.
"""

import shutil
from dataclasses import dataclass

import pytest

from tests.contracts.toolchain import SOLIDITY, build, failing_tests

pytestmark = pytest.mark.nightly

HISTORY = "long_history"  # test_handler__long_history__..., which checks every invariant


@dataclass(frozen=True)
class Mutant:
    """A one-line change and who must notice it."""

    name: str
    source: str
    old: str
    new: str
    noticed_by: str  # part of a forge test's name


MUTANTS = (
    Mutant(
        "paid may exceed funded",
        "Settlement",
        "if (amount > sums.funded - sums.paid) revert",
        "if (false) revert",
        "stops_at_funded",
    ),
    Mutant(
        "a debit needs no seal of its job's coordinator",
        "SignedMessages",
        "if (signer != coordinator) revert",
        "if (false) revert",
        "test_propose__other_signer",
    ),
    Mutant(
        "a root may pay more than was debited",
        "Settlement",
        "if (sum != rootSum) revert",
        "if (false) revert",
        HISTORY,
    ),
    Mutant(
        "a claim is not remembered",
        "Settlement",
        "claimed[account] = cumulative;",
        "",
        HISTORY,
    ),
    Mutant(
        "a refund can be taken again",
        "JobEscrow",
        "_jobs[job].deposited = uint80(kept);",
        "",
        HISTORY,
    ),
    Mutant(
        "slashed stake stays reserved",
        "StakeRegistry",
        "account.reserved -= reserved;",
        "",
        HISTORY,
    ),
    Mutant(
        "limits may exceed the budget",
        "PayEscrow",
        "uint256 room = job.funded - job.committed; // J2",
        "uint256 room = type(uint80).max;",
        "invariant_J2",
    ),
    Mutant(
        "the bucket holds more than burst",
        "PayEscrow",
        "if (allowance > header.burst) allowance = header.burst;",
        "",
        "invariant_J4",
    ),
    Mutant(
        "a replayed grant stops the refill",
        "PayEscrow",
        "if (grown == 0) return;",
        "",
        "test_grant__replays",
    ),
    Mutant(
        "an account that ended is granted more",
        "PayEscrow",
        "if (it.ended || limit <= before",
        "if (limit <= before",
        "test_grant__replayed_after_a_quit",
    ),
    Mutant(
        "pay is claimed twice",
        "PayEscrow",
        "claimed: due,",
        "claimed: claimed,",
        "invariant_J3",
    ),
    Mutant(
        "what was shown as earned flows back",
        "PayEscrow",
        "if (keep < it.earned) keep = it.earned;",
        "",
        "invariant_J[27]",
    ),
    Mutant(
        "committed money flows back",
        "PayEscrow",
        "if (amount > free) amount = free;",
        "",
        "invariant_J2",
    ),
    Mutant(
        "a held bond fills up what was burned",
        "PayEscrow",
        "if (it.end != 0 || stake <= it.stake)",
        "if (stake <= it.stake)",
        "test_burn__announced",
    ),
    Mutant(
        "stake is slashed in the moment before its release",
        "PayEscrow",
        "|| isOpen || isLate)",
        "|| isOpen)",
        "test_announce__ended",
    ),
    Mutant(
        "an end after the close holds stake back",
        "PayEscrow",
        "if (ended == 0 || (closedAt != 0 && closedAt < ended)) ended",
        "if (ended == 0) ended",
        "test_close__earlier",
    ),
    Mutant(
        "a signature is good for ever",
        "PayEscrow",
        "return block.timestamp <= by && by <=",
        "return by != 0 || by <=",
        "test_bond__replayed_after_a_release",
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant__one_line_broken__is_noticed(mutant: Mutant) -> None:
    folder = SOLIDITY / "out" / "mutants" / mutant.name.replace(" ", "_").replace("'", "")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOLIDITY / "src", folder / "src")
    path = folder / "src" / f"{mutant.source}.sol"
    text = path.read_text(encoding="ascii")
    assert text.count(mutant.old) == 1, "the mutated line has changed"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="ascii")
    build(folder / "abi", sources=folder / "src")

    failed = failing_tests(mutant.noticed_by, artifacts=folder / "abi")

    assert failed, f"nobody noticed that {mutant.name}"


def test_mutants__nothing_broken__all_pass() -> None:
    folder = SOLIDITY / "out" / "mutants" / "none"
    build(folder / "abi", sources=SOLIDITY / "src")
    names = "|".join(sorted({mutant.noticed_by for mutant in MUTANTS}))

    assert failing_tests(names, artifacts=folder / "abi") == []
