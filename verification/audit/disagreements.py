"""Where a job's chain and its seals disagree on money: a line for each. Pure.

The contract pays what any seal of the coordinator vests, up to a limit, and knows no history. So a
seal that nobody else has seen shows here: as a payment above what the seals of the history vest, or
as pay shown above what they say was earned. Amounts are base units.
"""

from collections.abc import Iterable, Iterator

from contracts.governance.escrow import Channel
from contracts.governance.pay import PayLeaf
from contracts.governance.record import JobRecord
from contracts.terms.amounts import in_tokens
from contracts.terms.ids import Address
from verification.audit.chain_proof import ChainFacts


def disagreements(record: JobRecord, newest: Iterable[PayLeaf], facts: ChainFacts) -> Iterator[str]:
    """Each disagreement, by account.

    Args:
        record: The job as of its newest anchored seal.
        newest: Pay of the newest seal, anchored or not; pay never falls.
        facts: What a block proves.
    """
    pay = {leaf.account: leaf for leaf in newest}
    is_working = not record.ended and not facts.job["closedAt"]
    stakes = _stakes(record) if is_working else {}
    for account, channel in sorted(facts.channels.items()):
        leaf = pay.get(account)
        earned, vested = (leaf.earned, leaf.vested) if leaf else (0, 0)
        for what in _of_account(channel, earned, vested, stakes.get(account, 0)):
            yield f"0x{account.hex()}: {what}"
    limits = sum(each.limit for each in facts.channels.values())
    funded, committed = facts.job["funded"], facts.job["committed"]
    if not limits <= committed <= funded:
        yield (
            f"budget: limits of {in_tokens(limits)} in {in_tokens(committed)} committed"
            f" of {in_tokens(funded)}"
        )


def _of_account(channel: Channel, earned: int, vested: int, stake: int) -> Iterator[str]:
    limit, claimed, shown = channel.limit, channel.claimed, channel.earned
    if claimed > vested:
        yield f"was paid {in_tokens(claimed)}, but its seals vest {in_tokens(vested)}"
    if shown > earned:
        yield f"was shown to have earned {in_tokens(shown)}, but its seals say {in_tokens(earned)}"
    if max(claimed, shown) > limit:
        yield f"was paid or shown {in_tokens(max(claimed, shown))}, but granted {in_tokens(limit)}"
    # A release lowers the limit to what was claimed or shown: one above it is of work that goes on.
    if not channel.end and limit > max(claimed, shown) and channel.stake < stake:
        yield f"works for a stake of {in_tokens(stake)}, but has bonded {in_tokens(channel.stake)}"


def _stakes(record: JobRecord) -> dict[Address, int]:
    """Bonds that members and outside auditors of a job must have in it."""
    stakes: dict[Address, int] = {each.account: each.stake for each in record.outside.auditors}
    for peer in record.members:
        lease = record.leases[peer]
        stakes[lease.account] = max(lease.stake, stakes.get(lease.account, 0))
    return stakes
