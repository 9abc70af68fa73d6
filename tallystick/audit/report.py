"""How a verdict reads: a table for people, a body for programs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from contracts.governance.escrow import Channel
from contracts.terms.amounts import format_tokens
from contracts.terms.ids import AddressField, DigestField, JobIdField
from market.bodies.base import Body, Money
from market.bodies.market import EscrowTimesView
from market.bodies.offers import OddsView
from verification.audit.audit_file import AccountVerdict, EscrowVerdict, Verdict
from verification.draws.odds import short, spelled


class PinnedBlock(Body):
    """The block that a file is about."""

    number: int
    hash: DigestField
    time: int  # Unix seconds


class HeldForAccount(Body):
    """What the escrow holds for an account in a job; see `contracts.governance.escrow.Channel`."""

    limit: Money
    claimed: Money
    shown: Money  # as earned, to the contract
    stake: Money
    end: int  # Unix seconds; 0: it has not ended by itself
    slash_amount: Money
    slash_from: int


class AccountPaid(Body):
    """What an account earned in a job, and what the chain holds for it."""

    earned: Money
    vested: Money
    forfeited: Money
    held: HeldForAccount | None  # None: no storage is proved


class EscrowedBudget(Body):
    """A job's budget: funded = limits + others + free."""

    funded: Money
    limits: Money
    others: Money  # granted to accounts that the history does not know
    claimed: Money  # of the limits
    free: Money
    closed_at: int  # Unix seconds; 0: it is not closed


class Verified(Body):
    """What an audit file proves."""

    verdict: Literal["anchored", "unanchored"]
    work: str
    job: JobIdField
    chain_id: int
    block: PinnedBlock
    contracts: dict[str, AddressField]
    token: AddressField
    slasher: AddressField
    canceller: AddressField
    times: EscrowTimesView
    steps: int
    ended: bool
    num_items: int
    checked: dict[str, int]
    disagreements: tuple[str, ...]
    odds: dict[str, tuple[OddsView, ...]]  # by peer
    accounts: dict[str, AccountPaid]  # by account
    escrow: EscrowedBudget | None  # None: no storage is proved


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people; the last line says it all."""
    wiring, times = verdict.wiring, verdict.wiring.times
    yield f"job                 {verdict.job.hex()}"
    yield f"chain               {verdict.chain_id}, block {verdict.block_number}"
    yield f"  of                {_moment(verdict.block_time)}"
    yield f"block hash          0x{verdict.block_hash.hex()}"
    roles = {"token": wiring.token, "slasher": wiring.slasher, "canceller": wiring.canceller}
    for name, address in {**wiring.addresses, **roles}.items():
        yield f"  {name:<18}0x{address.hex()}"
    for name, seconds in asdict(times).items():
        yield f"  {name:<18}{seconds} s"
    for name, number in verdict.checked.items():
        yield f"{name:<26}{number:>10}"
    yield f"steps sealed        {verdict.steps}{' (ended)' if verdict.ended else ''}"
    if later := verdict.checked["seals in no batch"]:
        yield f"  later ones        {later} in no batch: no figure but payments counts them"
    for account, each in verdict.accounts.items():
        yield f"account             0x{account.hex()}"
        yield from _amounts(_money(each))
        if each.channel is not None and each.channel.end:
            yield f"  ended             {_moment(each.channel.end)}"
    yield from _odds(verdict)
    if verdict.escrow is None:
        yield "storage             unproved: the node could not prove any"
    else:
        yield f"{'funded':<20}{format_tokens(verdict.escrow.funded):>20}"
        yield from _amounts(_parts(verdict.escrow))
        if verdict.escrow.closed_at:
            yield f"  closed            {_moment(verdict.escrow.closed_at)}"
    yield from (f"disagreement        {line}" for line in verdict.disagreements)
    again = ": nobody did it again" if verdict.work == "unchecked" else ""
    yield f"work                {verdict.work}{again}"
    yield summary(verdict)


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _amounts(named: Mapping[str, int]) -> Iterator[str]:
    for name, amount in named.items():
        yield f"  {name:<18}{format_tokens(amount):>20}"


def _money(each: AccountVerdict) -> dict[str, int]:
    """What an account earned, and what the chain granted it, paid it and holds of it."""
    found: dict[str, int] = {
        "earned": each.earned,
        "vested": each.vested,
        "forfeited": each.forfeited,
    }
    if (channel := each.channel) is not None:
        above = max(0, each.vested - channel.limit)
        found |= {"limit": channel.limit} | ({"vested above it": above} if above else {})
        found |= {"paid": channel.claimed, "stake": channel.stake}
        found |= {"announced slash": channel.slash_amount} if channel.slash_amount else {}
    return found


def _parts(escrow: EscrowVerdict) -> dict[str, int]:
    """Where a budget is."""
    return {
        "limits": escrow.limits,
        "of that paid": escrow.claimed,
        "limits of others": escrow.others,
        "free": escrow.free,
    }


def _odds(verdict: Verdict) -> Iterator[str]:
    """How likely it is that falsified peer-steps were never seen, from the draws that were made."""
    if verdict.odds:
        yield "P(undetected) of so many false peer-steps: strangers, largest owner, whole stage"
    for peer, stated in sorted(verdict.odds.items()):
        yield f"peer                0x{peer.hex()}"
        for each in stated:
            chances = (each.strangers, each.friends, each.whole_stage)
            yield f"  {each.falsified:<18}" + "".join(f"{short(chance):>12}" for chance in chances)


def summary(verdict: Verdict) -> str:
    """One line."""
    held = "anchored" if verdict.anchored else "self-consistent but unanchored"
    if num := len(verdict.disagreements):
        held = f"chain and seals disagree {'once' if num == 1 else f'{num} times'}"
    escrow, later = verdict.escrow, verdict.checked["seals in no batch"]
    tail = f" ({later} later ones in no batch)" if later else ""
    money = "storage unproved"
    if escrow is not None:
        money = (
            f"funded {format_tokens(escrow.funded)} = limits {format_tokens(escrow.limits)}"
            f" + others {format_tokens(escrow.others)} + free {format_tokens(escrow.free)},"
            f" paid {format_tokens(escrow.claimed)}"
        )
    return f"{held}: {verdict.steps} steps{tail}, {money}, work {verdict.work}"


def body(verdict: Verdict) -> Verified:
    """The verdict for programs."""
    wiring, escrow = verdict.wiring, verdict.escrow
    return Verified.of(
        verdict,
        verdict="anchored" if verdict.anchored else "unanchored",
        block=PinnedBlock(
            number=verdict.block_number, hash=verdict.block_hash, time=verdict.block_time
        ),
        contracts=dict(wiring.addresses),
        token=wiring.token,
        slasher=wiring.slasher,
        canceller=wiring.canceller,
        times=EscrowTimesView.of(wiring.times),
        checked=dict(verdict.checked),
        odds={
            peer.hex(): tuple(OddsView(**spelled(each)) for each in stated)
            for peer, stated in sorted(verdict.odds.items())
        },
        accounts={
            account.hex(): AccountPaid.of(each, held=_held(each.channel))
            for account, each in verdict.accounts.items()
        },
        escrow=None if escrow is None else EscrowedBudget.of(escrow),
    )


def _held(channel: Channel | None) -> HeldForAccount | None:
    return None if channel is None else HeldForAccount.of(channel, shown=channel.earned)
