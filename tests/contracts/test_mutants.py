"""Would the Solidity suites notice? One line of the contracts is broken at a time.

Each mutant names the property that it violates and the forge test that must fail for it. The
mutated sources are compiled by the quick pipeline into `out/mutants`; the tests are the same.
"""

import shutil
from dataclasses import dataclass

import pytest

from tests.contracts.toolchain import SOLIDITY, build, failing_tests

pytestmark = pytest.mark.nightly


@dataclass(frozen=True)
class Mutant:
    """A one-line change and who must notice it."""

    name: str
    old: str
    new: str
    noticed_by: str  # part of a forge test's name
    source: str = "JobEscrow"


MUTANTS = (
    Mutant(
        "limits may exceed the budget",
        "uint256 room = job.funded - job.committed; // J2",
        "uint256 room = type(uint80).max;",
        "invariant_J2",
    ),
    Mutant(
        "the bucket holds more than burst",
        "if (allowance > header.burst) allowance = header.burst;",
        "",
        "invariant_J4",
    ),
    Mutant(
        "a replayed grant stops the refill", "if (grown == 0) return;", "", "test_grant__replays"
    ),
    Mutant(
        "an account that ended is granted more",
        "if (it.ended || limit <= before",
        "if (limit <= before",
        "test_grant__replayed_after_a_quit",
    ),
    Mutant("pay is claimed twice", "claimed: due,", "claimed: claimed,", "invariant_J3"),
    Mutant(
        "what was shown as earned flows back",
        "if (keep < it.earned) keep = it.earned;",
        "",
        "test_quit__gives_back",
    ),
    Mutant(
        "committed money flows back",
        "if (amount > free) amount = free;",
        "",
        "test_reclaim__only_what_is_not_committed",
    ),
    Mutant(
        "a held bond fills up what was burned",
        "if (it.end != 0 || stake <= it.stake)",
        "if (stake <= it.stake)",
        "test_burn__announced",
    ),
    Mutant(
        "stake is slashed in the moment before its release",
        "|| isOpen || isLate)",
        "|| isOpen)",
        "test_announce__ended",
    ),
    Mutant(
        "an end after the close holds stake back",
        "if (ended == 0 || (closedAt != 0 && closedAt < ended)) ended",
        "if (ended == 0) ended",
        "test_close__earlier",
    ),
    Mutant(
        "a signature is good for ever",
        "return block.timestamp <= by && by <=",
        "return by != 0 || by <=",
        "test_bond__replayed_after_a_release",
    ),
    Mutant(
        "a signed withdrawal counts twice",
        "= balances[account].nonce++;",
        "= nonce;",
        "test_withdrawFor__signed",
    ),
    Mutant(
        "stake burns without its notice",
        "amount == 0 || block.timestamp < from ||",
        "amount == 0 ||",
        "invariant_J6",
    ),
    Mutant(
        "stake is free before the tail is over",
        "if (ended == 0 || block.timestamp < ended + TAIL) continue;",
        "if (ended == 0) continue;",
        "invariant_J6",
    ),
    Mutant(
        "a stranger takes what is free before the tail is over",
        "block.timestamp >= uint256(job.closedAt) + TAIL;",
        "true;",
        "test_reclaim__by_others",
    ),
    Mutant(
        "the order of a path does not matter",
        "sides := shr(1, sides)",
        "",
        "test_claimAll__subtrees",
        "PayTree",
    ),
    Mutant(
        "two batches share a beacon",
        "if (anchorChain_.pendingBlock == block.number) revert AlreadyAnchored",
        "if (false) revert AlreadyAnchored",
        "test_anchor__twice",
        "SealAnchor",
    ),
    Mutant(
        "a number changes without notice",
        "if (block.timestamp < change.effectiveAt) revert",
        "if (false) revert",
        "test_change__takes_effect",
        "Parameters",
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
