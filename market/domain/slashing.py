"""How much stake a conviction takes, and whether it still can. Pure.

All of a burn is burned: nobody gains by a conviction, so nobody has a reason to stage one. One
slash of an account in a job is open at a time; the next takes what is left. Units: base units,
chain seconds. Source: docs/protocol.md 5; the rules are those of JobEscrow.
"""

from contracts.governance.escrow import Budget, Channel, EscrowTimes, end_of
from contracts.terms.amounts import BaseUnits


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
    ended = end_of(channel.end, budget.closed_at)
    if ended and now >= ended + times.tail - times.announce - times.execute:
        return BaseUnits(0)
    return BaseUnits(min(wanted, channel.stake))
