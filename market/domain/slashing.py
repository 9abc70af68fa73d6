"""How much stake a conviction takes, and who gets it. Pure.

Several convictions that are open against one stake share what one slash may take of it, in
proportion to what each wants, so a case that somebody stages against himself saves no more than its
share, of which less than half comes back. Of what is taken at least `min_burn` is burned; the
challenger has at most `max_bounty`; the rest goes to the job that was cheated, at most what it paid
or owed for the convicted work; what nobody may have is burned too. The judge gets nothing: no
argument names it.

Rounding: every amount is rounded down, so the dust is not taken, or burned. Units: base units;
rates in 1/10,000. Source: docs/protocol.md 7; the caps are those of StakeRegistry (I10).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, Digest, JobId

BPS = 10_000


@dataclass(frozen=True)
class SlashRules:
    """The protocol's numbers, of the Parameters contract."""

    max_slash: int  # of what a case can reach, for all cases together
    max_bounty: int  # of a slash
    min_burn: int  # of a slash


@dataclass(frozen=True)
class Conviction:
    """Work that was convicted, with the evidence that anyone can run again."""

    evidence: Digest
    job: JobId
    account: Address
    wanted: BaseUnits  # of its stake: what its LeaseAccept reserved
    owed: BaseUnits  # what the job paid or owed for the convicted peer-steps
    challenger: Address  # who found it


@dataclass(frozen=True)
class Slash:
    """A case as it is announced: the rest of `amount` is burned."""

    evidence: Digest
    job: JobId
    account: Address
    amount: BaseUnits
    restitution: BaseUnits
    challenger: Address
    bounty: BaseUnits

    @property
    def burned(self) -> BaseUnits:
        """What nobody gets."""
        return BaseUnits(self.amount - self.restitution - self.bounty)


def settle_together(
    convictions: Sequence[Conviction],
    *,
    slashable: BaseUnits,
    announced: BaseUnits,
    rules: SlashRules,
) -> tuple[Slash, ...]:
    """What the convictions of one account in one job take; those that get nothing are left out.

    Args:
        convictions: None of them announced yet.
        slashable: What a case of the job can reach of the account's stake.
        announced: What open cases against the same stake take of it already.
        rules: Caps.
    """
    if len({(each.account, each.job) for each in convictions}) > 1:
        raise InvariantBroken("convictions of two accounts or jobs are not settled together")
    left = max(0, slashable * rules.max_slash // BPS - announced)
    wanted = sum(each.wanted for each in convictions)
    slashes = (
        _split(each, each.wanted * min(left, wanted) // wanted, rules)
        for each in convictions
        if wanted
    )
    return tuple(slash for slash in slashes if slash.amount)


def _split(conviction: Conviction, amount: int, rules: SlashRules) -> Slash:
    """The challenger first, so that the cheated job's part never makes looking unprofitable."""
    given = amount * (BPS - rules.min_burn) // BPS
    bounty = min(amount * rules.max_bounty // BPS, given)
    restitution = min(conviction.owed, given - bounty)
    if conviction.challenger == conviction.account:
        bounty = 0  # nobody is paid for having cheated
    return Slash(
        evidence=conviction.evidence,
        job=conviction.job,
        account=conviction.account,
        amount=BaseUnits(amount),
        restitution=BaseUnits(restitution),
        challenger=conviction.challenger,
        bounty=BaseUnits(bounty),
    )
