"""How much stake a conviction takes, and whether it still can. Pure.

All of a burn is burned: nobody gains by a conviction, so nobody has a reason to stage one. One
slash of an account in a job is open at a time; the next takes what is left. Units: base units,
chain seconds. Source: docs/protocol.md 5; the rules are those of JobEscrow.
"""

from dataclasses import dataclass

from contracts.governance.escrow import Budget, Channel, EscrowTimes
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, JobId


@dataclass(frozen=True)
class Conviction:
    """Work that was convicted, with the evidence that anyone can run again."""

    evidence: Digest
    job: JobId
    account: Address
    wanted: BaseUnits  # of its stake: what its leases ask for


def amount_to_announce(
    wanted: BaseUnits, channel: Channel, budget: Budget, times: EscrowTimes, now: int
) -> BaseUnits:
    """What can be announced at `now`; nothing if no stake is left, or it is on its way back.

    Args:
        wanted: By the conviction.
        channel: Of the account in the job.
        budget: Of the job.
        times: Of the escrow.
        now: Seconds.
    """
    ended = min((at for at in (channel.end, budget.closed_at) if at), default=None)
    if ended is not None and now >= ended + times.tail - times.announce - times.execute:
        return BaseUnits(0)
    return BaseUnits(min(wanted, channel.stake))
