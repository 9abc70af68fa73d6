"""What members are told of the round in work by `round.claims`: claims, RoundClosed, who reduces.

Whose own claims are not stored hears of others' from RoundClosed on: nobody can claim what it has
read. A reducer that has claimed hears of what gives to its buckets, so that it fetches shards at
once; once all claims are in, others hear of what reducers would hold alone. From RoundClosed on
everybody hears of all claims that it names, then of buckets as they come. News is gathered for a
moment, longer where there are many members, as much of it shares an answer.

What a session has carried is remembered, so that a seal only names it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakKeyDictionary

from typing_extensions import Buffer

from contracts.terms.history import kept_digest
from contracts.terms.ids import ChunkIndex, Digest, PeerId
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from training.coordinator.journal import JobJournal
from training.rounds.state import NO_BYTES, NO_ROUND, Commit, OpenRound, Reduce, RoundState, Work
from training.rounds.state import Seal as SealPhase
from training.strategies.port import Bucket, Group, RoundNumber
from training.transport import calls
from training.transport.port import Session

LONG_POLL = 20.0  # seconds that a member waits for news before it hears that there is none
GATHER = 1e-3  # seconds, for each member, that news waits for more of it
MOST_AT_ONCE = 4096  # messages
MOST_BYTES = 16 * 2**20

Entry: TypeAlias = tuple[Digest, bytes]
"""A signed message, by the name under which it is kept."""


@dataclass
class _Told:
    """What a member was told of a round, in order."""

    entries: list[Entry] = field(default_factory=list)
    names: set[Digest] = field(default_factory=set)  # of the messages
    holds: frozenset[Digest] = frozenset()  # that it was asked to hold


@dataclass
class _OfSession:
    """What a session has carried."""

    names: set[Digest] = field(default_factory=set)
    members: tuple[calls.MemberView, ...] | None = None


class Board:
    """Of one job."""

    def __init__(self, job: JobJournal) -> None:
        self._job = job
        self._round = NO_ROUND
        self._told: dict[PeerId, _Told] = {}  # of the round in work
        self._encoded: dict[Digest, Entry] = {}
        # By what many members ask for, while it is the same object.
        self._claimed: tuple[object, set[PeerId]] = None, set()
        self._dealt: tuple[object, Mapping[PeerId, list[Bucket]]] = None, {}
        self._sessions: WeakKeyDictionary[Session, _OfSession] = WeakKeyDictionary()

    # ---------------------------------------------------------------------------- what was carried

    def _of(self, session: Session) -> _OfSession:
        return self._sessions.setdefault(session, _OfSession())

    def carried(self, session: Session) -> set[Digest]:
        """Kept items that a session has carried, by name, this round and the one before."""
        return self._of(session).names

    def members_for(self, session: Session) -> tuple[calls.MemberView, ...]:
        """All members; nobody, if a session was told and nothing has changed since."""
        of, views = self._of(session), self._job.member_views()
        if of.members is views:
            return ()
        of.members = views
        return views

    # ------------------------------------------------------------------------------- what is told

    async def get(
        self, peer: PeerId, group: Group, request: calls.GetClaims, session: Session | None
    ) -> tuple[calls.Claims, Sequence[Buffer]]:
        """What is new for a member, as soon as there is something, or nothing after a while."""
        seen = request.seen
        with suppress(TimeoutError):
            async with asyncio.timeout(LONG_POLL):
                while request.round == self._job.state.round:
                    version = self._job.exchanged.version
                    told = self._told_to(peer)
                    if seen != len(told.entries) or not self._holds(peer) <= told.holds:
                        break
                    await self._job.exchanged.beyond(version)
                    await asyncio.sleep(GATHER * len(self._job.state.members))
        return self._answer(peer, group, request, session)

    def _answer(
        self, peer: PeerId, group: Group, request: calls.GetClaims, session: Session | None
    ) -> tuple[calls.Claims, Sequence[Buffer]]:
        state, seen = self._job.state, request.seen
        fresh: list[Entry] = []
        holds = frozenset[Digest]()
        if request.round == state.round:
            told, size, holds = self._told_to(peer), 0, self._holds(peer)
            told.holds = holds
            seen = 0 if seen > len(told.entries) else seen
            for entry in told.entries[seen : seen + MOST_AT_ONCE]:
                size += len(entry[1])
                if fresh and size > MOST_BYTES:
                    break
                fresh.append(entry)
        members = self._job.member_views() if session is None else self.members_for(session)
        if session is not None:
            self._of(session).names.update(name for name, _ in fresh)
        answer = calls.Claims(
            round=state.round,
            seen=seen + len(fresh),
            reduces=tuple(self._reduces(peer, group)) if request.round == state.round else (),
            holds=tuple(sorted(holds)),
            members=members,
        )
        return answer, [data for _, data in fresh]

    def _reduces(self, peer: PeerId, group: Group) -> Iterator[ChunkIndex]:
        """Buckets that it is dealt, once it has claimed."""
        state, open = self._job.state, self._job.state.open
        if open is not None and self._may_hear(state, open, peer):
            yield from sorted(number for own, number in self._dealt_to(open, peer) if own == group)

    def _dealt_to(self, open: OpenRound, peer: PeerId) -> list[Bucket]:
        """Buckets that it is dealt."""
        if self._dealt[0] is not open.dealing:
            found = defaultdict[PeerId, list[Bucket]](list)
            for bucket, reducer in open.dealing.items():
                found[reducer].append(bucket)
            self._dealt = open.dealing, found
        return self._dealt[1].get(peer, [])

    def _holds(self, peer: PeerId) -> frozenset[Digest]:
        """Shards that a member is to hold and does not, once all claims are in."""
        phase = self._job.state.phase
        return phase.lacking.get(peer, NO_BYTES) if isinstance(phase, Commit) else NO_BYTES

    def _told_to(self, peer: PeerId) -> _Told:
        """All that a member may hear of the round by now, in the order in which it hears it."""
        state, open = self._job.state, self._job.state.open
        self._begin(state.round)
        told = self._told.setdefault(peer, _Told())
        if open is None:
            return told
        phase = state.phase
        if isinstance(phase, Reduce):
            closed = phase.closed
            if closed.digest() not in told.names:
                self._add(told, *closed.weights)
                self._add(told, closed.digest())
            for signed in phase.buckets.values():
                name = signed.message.digest()
                if name not in self._encoded:
                    self._encoded[name] = _entry(signed)
                self._add(told, name)
        elif not isinstance(phase, SealPhase) and self._may_hear(state, open, peer):
            outputs, own = state.terms.layout.outputs, {*self._dealt_to(open, peer)}
            giving = {each for each, buckets in outputs.items() if not own.isdisjoint(buckets)}
            self._add(told, *(n for n, claim in open.claims.items() if claim.group in giving))
        if holds := self._holds(peer):
            for name, claim in open.claims.items():
                if name not in told.names and any(o.digest in holds for o in claim.outputs):
                    self._add(told, name)
        return told

    def _may_hear(self, state: RoundState, open: OpenRound, peer: PeerId) -> bool:
        """Whether a member's own claims are stored, or everybody may hear."""
        if not isinstance(state.phase, Work | Commit):
            return True
        if self._claimed[0] is not open.claims:
            late = state.late
            own = (claim for name, claim in open.claims.items() if name not in late)
            self._claimed = open.claims, {claim.peer for claim in own}
        return peer in self._claimed[1] and peer not in open.unclaimed

    def encoded(self, name: Digest) -> bytes:
        """A signed message of the round in work, as it is sent."""
        if name not in self._encoded:
            self._encode()
        return self._encoded[name][1]

    def _begin(self, round: RoundNumber) -> None:
        if self._round != round:
            self._round, self._told, self._encoded = round, {}, {}
            for of in self._sessions.values():
                of.names = set() if len(of.names) > MOST_AT_ONCE else of.names

    def _add(self, told: _Told, *names: Digest) -> None:
        for name in names:
            if name not in told.names:
                if name not in self._encoded:
                    self._encode()
                told.entries.append(self._encoded[name])
                told.names.add(name)

    def _encode(self) -> None:
        for signed in self._job.history.pending.values():
            name = signed.message.digest()
            if name not in self._encoded:
                self._encoded[name] = _entry(signed)


def _entry(signed: Signed[Message]) -> Entry:
    return kept_digest(signed), signed.encoded()
