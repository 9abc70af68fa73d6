"""The escrow of jobs once more, in plain Python: what `JobEscrow` has to do, call by call.

Written from the specification, not from the contract. `test_escrow` checks its invariants over
random histories, `test_escrow_twin` that the contract does the same on a real chain. There are no
signatures: a call is one that its party signed. Amounts are base units, times Unix seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

BURN = "burn"
ACCOUNTS = ("poster", "worker", "friend", "stranger")
MARGIN, ANNOUNCE, EXECUTE, TAIL = 60, 10, 20, 300
BURST, BUDGET = 10_000_000, 30_000_000


class Refused(Exception):
    """The contract reverts."""


def need(condition: bool) -> None:
    """Revert unless `condition` holds."""
    if not condition:
        raise Refused


@dataclass
class Member:
    """One account's part of a job."""

    limit: int = 0
    claimed: int = 0
    earned: int = 0
    stake: int = 0
    end: int = 0
    slash_amount: int = 0
    slash_from: int = 0


@dataclass
class Job:
    """One job that was opened."""

    rate: int
    funded: int = BUDGET
    committed: int = 0
    closed_at: int = 0
    allowance: int = BURST
    since: int | None = None
    burst: int = BURST
    poster: str = "poster"
    members: dict[str, Member] = field(default_factory=lambda: {who: Member() for who in ACCOUNTS})

    def ended(self, who: str) -> int:
        """When the account's work ended; 0: it has not."""
        return min((at for at in (self.members[who].end, self.closed_at) if at), default=0)


@dataclass
class Escrow:
    """The state of the contract at the time `now`."""

    now: int
    jobs: list[Job]
    balances: dict[str, int]

    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.now += seconds

    def deposit(self, who: str, amount: int) -> None:
        """Somebody adds to a balance."""
        self.balances[who] += amount

    def withdraw(self, who: str, amount: int) -> None:
        """An account takes free money out."""
        need(amount <= self.balances[who])
        self.balances[who] -= amount

    def top_up(self, at: int, amount: int) -> None:
        """Somebody adds to a budget."""
        need(not self.jobs[at].closed_at)
        self.jobs[at].funded += amount

    def reclaim(self, at: int, who: str, amount: int) -> None:
        """What is not committed goes to the poster."""
        job = self.jobs[at]
        over = job.closed_at and self.now >= job.closed_at + TAIL
        need(bool(who == job.poster or over))
        amount = min(amount, job.funded - job.committed)
        job.funded -= amount
        self.balances[job.poster] += amount

    def grant(self, at: int, limits: Sequence[tuple[str, int]]) -> None:
        """The coordinator raises limits, as far as bucket and budget let it."""
        job = self.jobs[at]
        need(not job.closed_at)
        allowance = job.allowance
        if job.since is not None:
            allowance = min(job.burst, allowance + job.rate * (self.now - job.since) // 3600)
        grown = 0
        for who, limit in limits:
            member = job.members[who]
            more = limit - member.limit
            if member.end or more <= 0 or more > allowance or more > job.funded - job.committed:
                continue
            member.limit, grown = limit, grown + more
            job.committed, allowance = job.committed + more, allowance - more
        if grown:
            job.allowance, job.since = allowance, self.now

    def bond(self, at: int, who: str, stake: int) -> None:
        """An account puts stake behind its work."""
        job, member = self.jobs[at], self.jobs[at].members[who]
        more = stake - member.stake
        need(not job.closed_at and not member.end and 0 < more <= self.balances[who])
        self.balances[who] -= more
        member.stake = stake

    def claim(self, at: int, leaves: Sequence[tuple[str, int, int]]) -> None:
        """Somebody shows leaves of a seal: account, earned, vested."""
        for who, earned, vested in leaves:
            member = self.jobs[at].members[who]
            due = max(0, min(vested, member.limit) - member.claimed)
            member.claimed += due
            self.balances[who] += due
            member.earned = max(member.earned, min(max(earned, vested), member.limit))

    def quit(self, at: int, who: str, keep: int) -> None:
        """An account stops, and keeps a part of its limit."""
        self._lower(at, who, keep)
        self.end(at, who)

    def end(self, at: int, who: str) -> None:
        """The coordinator ends an account's work."""
        member = self.jobs[at].members[who]
        member.end = member.end or self.now

    def close(self, at: int) -> None:
        """The poster ends everybody."""
        self.jobs[at].closed_at = self.jobs[at].closed_at or self.now

    def release(self, at: int, who: str) -> None:
        """What ended `TAIL` ago comes free."""
        ended, member = self.jobs[at].ended(who), self.jobs[at].members[who]
        if not ended or self.now < ended + TAIL:
            return
        self._lower(at, who, 0)
        self.balances[who] += member.stake
        member.stake = member.end = member.slash_amount = member.slash_from = 0

    def announce(self, at: int, who: str, amount: int) -> None:
        """The slasher says what it will burn."""
        member, ended = self.jobs[at].members[who], self.jobs[at].ended(who)
        need(0 < amount <= member.stake)
        need(not member.slash_amount or self.now >= member.slash_from + EXECUTE)
        need(not ended or self.now < ended + TAIL - ANNOUNCE - EXECUTE)
        member.slash_amount, member.slash_from = amount, self.now + ANNOUNCE

    def burn(self, at: int, who: str) -> None:
        """The slasher does what it announced."""
        member = self.jobs[at].members[who]
        need(member.slash_amount > 0 and 0 <= self.now - member.slash_from < EXECUTE)
        amount = min(member.slash_amount, member.stake)
        need(amount > 0)
        member.stake -= amount
        member.slash_amount = member.slash_from = 0
        self.balances[BURN] += amount
        self.end(at, who)

    def drop(self, at: int, who: str) -> None:
        """An announced slash is taken back."""
        member = self.jobs[at].members[who]
        need(member.slash_amount > 0)
        member.slash_amount = member.slash_from = 0

    def _lower(self, at: int, who: str, keep: int) -> None:
        job, member = self.jobs[at], self.jobs[at].members[who]
        limit = min(member.limit, max(keep, member.claimed, member.earned))
        job.committed -= member.limit - limit
        member.limit = limit


def new_escrow(now: int) -> Escrow:
    """Two jobs, one whose bucket refills in seconds and one in years; every account has money."""
    balances = dict.fromkeys((*ACCOUNTS, BURN), 0) | dict.fromkeys(ACCOUNTS, 50_000_000)
    return Escrow(now, [Job(rate=3_600_000_000), Job(rate=7)], balances)


@dataclass(frozen=True)
class Call:
    """One call of the contract: a method of `Escrow`, and its arguments."""

    name: str
    arguments: tuple[Any, ...]

    def apply(self, escrow: Escrow) -> bool:
        """Whether the model takes it."""
        method: Callable[..., None] = getattr(escrow, self.name)
        try:
            method(*self.arguments)
        except Refused:
            return False
        return True


def random_call(draw: Random, escrow: Escrow) -> Call:
    """A call by somebody, honest or not, with numbers near those where its answer changes."""
    at, who = draw.randrange(len(escrow.jobs)), draw.choice(ACCOUNTS)
    job, member = escrow.jobs[at], escrow.jobs[at].members[who]
    near = draw.choice((-1, 0, 1))
    free = job.funded - job.committed
    leaf = (who, draw.randrange(20_000_000), draw.randrange(member.limit + 2_000_000))
    other = draw.choice(ACCOUNTS)
    calls: dict[str, tuple[Any, ...]] = {
        "deposit": (who, draw.randrange(10_000_000)),
        "withdraw": (who, max(0, draw.choice((escrow.balances[who] + near, 1)))),
        "top_up": (at, draw.randrange(10_000_000)),
        "reclaim": (
            at,
            draw.choice(("poster", who)),
            max(0, draw.choice((free + near, free // 3))),
        ),
        "grant": (
            at,
            [
                (who, member.limit + draw.choice((draw.randrange(BURST), BURST, 1))),
                (other, job.members[other].limit + draw.randrange(BURST // 2)),
            ],
        ),
        "bond": (at, who, max(0, member.stake + draw.choice((near, 5_000_000)))),
        "claim": (at, [leaf, (other, 0, draw.randrange(5_000_000))][: draw.choice((1, 2))]),
        "quit": (at, who, draw.choice((0, draw.randrange(20_000_000)))),
        "end": (at, who),
        "close": (at,),
        "release": (at, who),
        "announce": (at, who, draw.choice((1, max(0, member.stake + near)))),
        "burn": (at, who),
        "drop": (at, who),
        "wait": (draw.choice((1, 5, *_edges(escrow, at, who))),),
    }
    often = ("grant", "claim", "claim", "wait", "release", "bond", "grant", "burn")
    name = draw.choice((*often, *calls))
    if name == "close" and draw.random() < 0.8:
        name = "claim"  # a closed job has little left to attack
    return Call(name, calls[name])


def _edges(escrow: Escrow, at: int, who: str) -> list[int]:
    """Seconds until just before, at and after the next moments that a rule names."""
    member, ended = escrow.jobs[at].members[who], escrow.jobs[at].ended(who)
    moments = [ended + TAIL, ended + TAIL - ANNOUNCE - EXECUTE] if ended else []
    if member.slash_amount:
        moments += [member.slash_from, member.slash_from + EXECUTE]
    return [
        moment + near - escrow.now
        for moment in moments
        for near in (-1, 0)
        if moment > escrow.now + 1
    ]
