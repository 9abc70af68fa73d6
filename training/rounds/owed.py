"""What is owed to whom in a state: the next call to each member, and when time matters. Pure.

A shell never remembers what it still has to send: it asks here, calls, tells the machine what came
back, and asks again. So a restart, a lost call or a returned peer needs no code of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from contracts.terms.ids import PeerId
from contracts.terms.moments import UnixMillis
from contracts.terms.work import RoundClosed
from training.rounds.state import (
    LONG_AGO,
    NOTHING,
    Commit,
    Finished,
    Reduce,
    RoundState,
    Work,
)
from training.strategies.port import Bucket, Items, RoundNumber


@dataclass(frozen=True)
class ApplySeal:
    """Hand over the seal of `round` with everything under it."""

    round: RoundNumber


@dataclass(frozen=True)
class AskClaim:
    """Ask for a claim of exactly these items, with this `seq` or a higher one."""

    round: RoundNumber
    seq: int
    items: Items


@dataclass(frozen=True)
class AskBuckets:
    """Ask for claims of these buckets."""

    closed: RoundClosed
    buckets: frozenset[Bucket]


Exchange: TypeAlias = ApplySeal | AskClaim | AskBuckets


def owed(state: RoundState, peer: PeerId) -> Exchange | None:
    """The next thing that the coordinator asks of a member, if there is any."""
    member = state.members.get(peer)
    if member is None or not member.is_here:
        return None
    if member.applied < state.newest_seal:
        return ApplySeal(RoundNumber(member.applied + 1))
    match state.phase:
        case Commit(open=open, is_delivering=False):
            items = open.unclaimed.get(peer, NOTHING)
            seq = open.seqs.get(peer, 0)
            return AskClaim(state.round, seq, items) if items else None
        case Reduce(closed=closed, owing=owing) if peer in owing:
            return AskBuckets(closed, owing[peer])
    return None


def all_applied(state: RoundState) -> RoundNumber:
    """The newest round whose seal every member has applied: buckets of later ones are wanted."""
    return min((m.applied for m in state.members.values()), default=state.newest_seal)


def next_deadline(state: RoundState, after: UnixMillis = LONG_AGO) -> UnixMillis | None:
    """When a `Ticked` can change something next; None while nothing waits for time.

    `after`: the moment of the last `Ticked`, which did whatever was due then. What was due and did
    not happen, as nobody is left to take over the work of one who is lost, is not due again.
    """
    return min((at for at in _moments(state) if at > after), default=None)


def _moments(state: RoundState) -> Iterator[UnixMillis]:
    if isinstance(state.phase, Finished):
        return
    terms = state.terms
    for peer in state.watched:
        member = state.members[peer]
        if member.lost_at is not None:
            yield UnixMillis(member.lost_at + terms.lease_grace)
        if member.redo_at is not None:
            yield member.redo_at
        if member.leaves_by is not None:
            yield member.leaves_by
    if state.stopping and state.standing_since is not None:
        yield UnixMillis(state.resumed_at + terms.lease_grace)
    if state.standing_since is not None:
        if state.return_by is not None:
            yield state.return_by
        return
    match state.phase:
        case Work(ends=int(ends)):
            yield ends
        case Commit(ends=ends, is_delivering=is_delivering):
            yield ends
            if is_delivering:
                yield UnixMillis(ends - terms.deliver_ms // 2)
        case Reduce(ends=ends, full_at=full_at):
            yield ends
            yield UnixMillis(ends - terms.reduce_ms // 2)
            if full_at is not None:
                yield UnixMillis(full_at + terms.hold_ms)
