"""What the escrow of jobs holds, folded from its events alone. Pure.

`JobEscrow` tells in events all that it stores but the nonces of withdrawals. So whoever has read
them in order knows every balance, budget, limit and stake without trusting a database, and
`differences` says where two who did so disagree. An event touches at most one row of each kind.
Amounts are base units, times Unix seconds. Source: `JobEscrow.sol`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId

BURN = Address(bytes.fromhex("000000000000000000000000000000000000dEaD"))
"""Whose balance holds what was slashed: nobody's."""
_HOUR = 3600


@dataclass(frozen=True)
class EscrowTimes:
    """The contract's times, in seconds."""

    margin: int  # longest time that a signature counts
    announce: int  # from the announcement of a slash to the first moment of its execution
    execute: int  # in which it may be executed
    tail: int  # from an account's end to the release of its stake and of what it did not need


def signing_seconds(margin: int) -> int:
    """How long a signature is made to count: less than the escrow allows, as clocks differ."""
    return margin * 23 // 24


def end_of(*moments: int) -> int:
    """When work ended: the first of these that is known, as `endOf` of the contract; 0: none is."""
    return min((each for each in moments if each), default=0)


def due_of(vested: int, limit: int, claimed: int) -> BaseUnits:
    """What a claim pays an account."""
    return BaseUnits(max(0, min(vested, limit) - claimed))


@dataclass(frozen=True)
class FundingTerms:
    """What a job's header says of its money; anybody may open a job with any header."""

    poster: Address
    burst: int
    rate: int  # an hour


@dataclass(frozen=True)
class Budget:
    """A job's budget, and the token bucket from which its limits grow."""

    funded: int = 0  # brought less what was reclaimed
    committed: int = 0  # the sum of all limits
    closed_at: int = 0  # 0: it is not closed
    allowance: int = 0  # what could be granted at `since`
    since: int = 0  # 0: nothing was granted yet

    @property
    def free(self) -> int:
        """What the poster can take back now."""
        return self.funded - self.committed

    def allowance_at(self, terms: FundingTerms, now: int) -> int:
        """What may be granted at `now`, as far as the bucket goes."""
        if not self.since:
            return terms.burst
        return min(terms.burst, self.allowance + terms.rate * (now - self.since) // _HOUR)


@dataclass(frozen=True)
class Channel:
    """An account's payment channel in a job, and its stake there."""

    limit: int = 0
    claimed: int = 0
    earned: int = 0  # as far as somebody showed it to the contract
    stake: int = 0
    end: int = 0  # 0: it has not ended by itself
    slash_amount: int = 0
    slash_from: int = 0


@dataclass
class EscrowState:
    """All that the contract holds."""

    announce_seconds: int
    terms: dict[JobId, FundingTerms] = field(default_factory=dict)
    balances: dict[Address, int] = field(default_factory=dict)
    budgets: dict[JobId, Budget] = field(default_factory=dict)
    channels: dict[tuple[JobId, Address], Channel] = field(default_factory=dict)

    def apply(self, event: str, args: Mapping[str, Any], at: int) -> None:
        """Apply the next event, of a block with the timestamp `at`.

        Raises:
            InvariantBroken: the contract has no such event, or no time is known.
        """
        if at <= 0:
            raise InvariantBroken(f"{event}: the time of its block is missing")
        match event:
            case "Deposited":
                self._move(Address(args["account"]), args["amount"])
            case "Withdrawn":
                self._move(Address(args["account"]), -args["amount"])
            case _ if "account" in args:
                self._apply_to_channel(event, args, at)
            case _:
                self._apply_to_job(event, args, at)

    def _apply_to_channel(self, event: str, args: Mapping[str, Any], at: int) -> None:
        job, account = JobId(args["job"]), Address(args["account"])
        channel, budget = self.channels.get((job, account), Channel()), self.budgets[job]
        match event:
            case "LimitSet":
                more = args["limit"] - channel.limit
                if more > 0:
                    left = budget.allowance_at(self.terms[job], at) - more
                    budget = replace(budget, allowance=left, since=at)
                self.budgets[job] = replace(budget, committed=budget.committed + more)
                channel = replace(channel, limit=args["limit"])
            case "Bonded":
                self._move(account, channel.stake - args["stake"])
                channel = replace(channel, stake=args["stake"])
            case "Claimed":
                self._move(account, args["amount"])
                claimed = channel.claimed + args["amount"]
                channel = replace(channel, claimed=claimed, earned=args["earned"])
            case "Ended":
                channel = replace(channel, end=at)
            case "Released":
                self._move(account, args["stake"])
                channel = replace(channel, stake=0, end=0, slash_amount=0, slash_from=0)
            case "SlashAnnounced":
                begins = at + self.announce_seconds
                channel = replace(channel, slash_amount=args["amount"], slash_from=begins)
            case "SlashDropped":
                channel = replace(channel, slash_amount=0, slash_from=0)
            case "Burned":
                self._move(BURN, args["amount"])
                stake = channel.stake - args["amount"]
                channel = replace(channel, stake=stake, slash_amount=0, slash_from=0)
            case _:
                raise InvariantBroken(f"{event} is no event of an account in a job")
        self.channels[job, account] = channel

    def _apply_to_job(self, event: str, args: Mapping[str, Any], at: int) -> None:
        job = JobId(args["job"])
        budget = self.budgets.get(job, Budget())
        match event:
            case "Opened":
                poster = Address(args["poster"])
                self.terms[job] = FundingTerms(poster, args["burst"], args["rate"])
                budget = Budget(funded=args["budget"])
            case "ToppedUp":
                budget = replace(budget, funded=budget.funded + args["amount"])
            case "Reclaimed":
                self._move(self.terms[job].poster, args["amount"])
                budget = replace(budget, funded=budget.funded - args["amount"])
            case "Closed":
                budget = replace(budget, closed_at=at)
            case _:
                raise InvariantBroken(f"{event} is no event of a job")
        self.budgets[job] = budget

    def _move(self, account: Address, amount: int) -> None:
        self.balances[account] = self.balances.get(account, 0) + amount


def held(state: EscrowState) -> int:
    """Base units that the contract must own: balances, stakes, and budgets less claims."""
    channels, budgets = state.channels.values(), state.budgets.values()
    set_aside = sum(each.stake - each.claimed for each in channels)
    return sum(state.balances.values()) + set_aside + sum(each.funded for each in budgets)


def differences(ours: EscrowState, theirs: EscrowState) -> list[str]:
    """Each row that is not the same in both, as one line; a row that is not there is empty."""
    found = list[str]()
    for what, empty, mine, other in (
        ("terms", None, ours.terms, theirs.terms),
        ("balance", 0, ours.balances, theirs.balances),
        ("budget", Budget(), ours.budgets, theirs.budgets),
        ("channel", Channel(), ours.channels, theirs.channels),
    ):
        mine_rows: Mapping[Any, object] = mine
        other_rows: Mapping[Any, object] = other
        for key in sorted({*mine_rows, *other_rows}):
            here, there = mine_rows.get(key, empty), other_rows.get(key, empty)
            if here != there:
                names = key if isinstance(key, tuple) else (key,)
                name = " ".join(f"0x{each.hex()}" for each in names)
                found.append(f"{what} {name}: {here} here, {there} there")
    return found
