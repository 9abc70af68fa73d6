"""Bytes that the coordinator keeps for others, and those that it finds for who lacks them.

What the round machine asks for (`KeepBytes`) is fetched from who may give it, checked against what
a claim binds (digest, number of elements, norm), and kept in a SQLite file until every member has
applied its round. Above `MOST_BYTES` older rounds give way, but for what they have handed on, which
takes half of that at most: a member that never applies anything, or delivers late, can neither fill
the disk nor keep us from what the round in work needs.

Who asks by `blob.get` for a shard or a bucket is given it alike. An auditor is given what its audit
needs, from whoever has it: the doer last, as it gains by delay. A Notice `missing_data` makes a
report `missing` count (docs/protocol.md 5), and is given when

- the auditor whose turn it is has asked for bytes that its subject binds,
- a round was sealed since it first asked, and again nothing fitting came from any holder,
- every holder that is a member was reached and has said no, or `commit_timeout` has passed.

While an auditor waits for us no deadline of its passes (`drawing`), for at most twice
`commit_timeout` and our two searches: holders that are silent would outlast it. Who let one search
wait in vain has `ASKED_AGAIN` in the next, or silent holders of many tensors would. Searches are in
memory alone; a coordinator that starts again begins them again.

Invariants: what is given is what was signed; `Held` is recorded only when the bytes are on disk.
"""

import asyncio
import operator
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from contracts.governance.checking import Late
from contracts.terms import errors
from contracts.terms.digest import peer_id
from contracts.terms.history import decode_kept
from contracts.terms.ids import Digest, PeerId, SessionKey
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.work import Output, Sort, WhatField, WorkClaim
from training.averaging.forms import Forms
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock
from training.rounds.events import Held, KeepBytes, NoticeDue
from training.rounds.owed import all_applied
from training.rounds.state import COORDINATOR, Commit, Reduce, RoundState, Work
from training.rounds.state import Seal as SealPhase
from training.strategies.port import Bucket, Group, RoundNumber
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session
from training.transport.wire import Answered, Question, ask

MOST_BYTES = 4 * 2**30
FETCHES, FETCHES_OF_ONE = 8, 2  # on their way to us at once, in all and from one peer
SHARE_OF_ONE = 1 / 4
"""Of the time for delivery, for one holder to give us bytes."""
SHORTEST_FETCH = 1.0  # seconds
RETRY = 0.5  # seconds between two rounds through all holders
ASKED_AGAIN = 5.0  # seconds for a holder that let the last search wait in vain

Sessions: TypeAlias = Callable[[], Mapping[SessionKey, Session]]


@dataclass(frozen=True)
class Bound:
    """A shard or a bucket, as a claim binds it."""

    what: WhatField
    output: Output
    bucket: Bucket
    round: RoundNumber  # until whose seal is applied it is wanted
    givers: tuple[PeerId, ...]  # who made it, and who said to hold it


@dataclass(frozen=True)
class Lack:
    """Bytes that an auditor cannot get, and whose audit they are of."""

    digest: Digest
    sort: Sort
    subject: Digest
    group: Group
    doer: PeerId  # who did the work or the sum, so has held them
    holders: tuple[PeerId, ...]  # the doer last


@dataclass(frozen=True)
class Search:
    """Since when an auditor asks us, and in which round we first found nothing."""

    at: UnixMillis
    round: RoundNumber | None = None


class Blobs:
    """Of one job."""

    def __init__(
        self,
        folder: Path,
        job: JobJournal,
        elements: Mapping[Bucket, int],
        sessions: Sessions,
        *,
        clock: Clock,
        tell: Tell,
    ) -> None:
        """`elements`: how many each bucket has."""
        self._job, self._elements, self._sessions = job, elements, sessions
        self._clock, self._tell, self._tell_rarely = clock, tell, Rarely(tell)
        self._forms = Forms(job.record_of_job.spec)
        self._file = KeptFile(folder / "kept.sqlite")
        self._keeping: dict[Digest, asyncio.Task[None]] = {}
        self._locks: defaultdict[Digest, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._lanes = asyncio.Semaphore(FETCHES)
        self._lanes_of: defaultdict[PeerId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(FETCHES_OF_ONE)
        )
        self._bound_of: tuple[tuple[object, ...], Set[Digest], dict[Digest, Bound]]
        self._bound_of = (None, None, None), frozenset(), {}  # by what; of which claims
        self._sealed: dict[int, dict[Digest, Bound]] = {}  # buckets of rounds somebody lacks
        self._dropped = RoundNumber(0)
        self._searches: dict[tuple[Digest, PeerId], Search] = {}  # by subject and auditor
        self._noticed: set[Digest] = set()
        self._silent: set[PeerId] = set()  # in searches, until they answer
        self._turns: defaultdict[PeerId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Give up what is on its way, and close the file."""
        for task in self._keeping.values():
            task.cancel()
        await asyncio.gather(*self._keeping.values(), return_exceptions=True)
        self._file.close()

    # ------------------------------------------------------------------------------- what is kept

    def keep(self, effect: KeepBytes) -> None:
        """Begin to fetch what the machine asks for."""
        for digest, givers in effect.wanted:
            task = self._keeping.get(digest)
            if task is None or task.done():
                self._keeping[digest] = asyncio.create_task(self._keep(digest, givers))

    async def _keep(self, digest: Digest, givers: Sequence[PeerId]) -> None:
        """Until it is here, or not wanted any more."""
        while (bound := self._in_work().get(digest)) is not None:
            try:
                if await self._fetched(digest, bound, givers) is not None:
                    return
            except errors.Unavailable as error:  # the disk is full
                self._tell_rarely("not_kept", step=bound.round, reason=error.message)
            await asyncio.sleep(RETRY)

    async def drop(self) -> None:
        """Forget what is of rounds that all members have applied."""
        applied = all_applied(self._job.state)
        for digest in [name for name, task in self._keeping.items() if task.done()]:
            del self._keeping[digest]
        if applied > self._dropped:
            self._dropped = applied
            self._sealed = {each: own for each, own in self._sealed.items() if each > applied}
            for digest in [name for name, lock in self._locks.items() if not lock.locked()]:
                del self._locks[digest]
            needed = frozenset(self._in_work())  # also what a void round hands on
            await asyncio.to_thread(self._file.drop, applied, needed)

    def named(self, digests: Iterable[Digest]) -> frozenset[Digest]:
        """Those of them that claims of the round in work bind."""
        return frozenset(self._in_work().keys() & {*digests})

    def _in_work(self) -> dict[Digest, Bound]:
        """Shards and buckets of the round in work, by what claims bind."""
        state, open = self._job.state, self._job.state.open
        if open is None:
            return {}
        phase = state.phase
        signed = phase.buckets if isinstance(phase, Reduce | SealPhase) else None
        seen = open.claims, signed, state.round
        before, known, found = self._bound_of
        if all(map(operator.is_, before, seen)):
            return found
        buckets = [each.message for each in (signed or {}).values()]
        claims = {**open.claims, **{claim.digest(): claim for claim in buckets}}
        if before[2] != state.round or not known <= claims.keys():
            known, found = frozenset(), {}
        for name, claim in claims.items():
            if name not in known:
                self._add(found, claim, state.round)
        self._bound_of = seen, claims.keys(), found
        return found

    def _add(self, found: dict[Digest, Bound], claim: WorkClaim, round: RoundNumber) -> None:
        own = self._job.state.terms.layout.outputs[claim.group]
        buckets = own if claim.what == "work" else ((claim.group, claim.bucket),)
        for bucket, output in zip(buckets, claim.outputs, strict=True):
            known = found.get(output.digest)
            givers = (*(known.givers if known else ()), claim.peer)
            found[output.digest] = Bound(claim.what, output, bucket, round, givers)

    def _bound(self, digest: Digest) -> Bound | None:
        """A shard or bucket of the round in work, or a bucket that somebody has not applied."""
        if (found := self._in_work().get(digest)) is not None:
            return found
        newest = self._job.state.newest_seal
        for number in range(newest, all_applied(self._job.state), -1):
            round = RoundNumber(number)
            if round not in self._sealed:
                found_in: dict[Digest, Bound] = {}
                self._sealed[round] = found_in
                for _, data in self._job.items_of(round):
                    item = decode_kept(data)
                    claim = item.message if isinstance(item, Signed) else None
                    if isinstance(claim, WorkClaim) and claim.what == "bucket":
                        self._add(found_in, claim, round)
            if (bound := self._sealed[round].get(digest)) is not None:
                return bound
        return None

    async def _fetched(
        self, digest: Digest, bound: Bound, givers: Iterable[PeerId]
    ) -> bytes | None:
        """The bytes, kept from now on; None if nobody gives them."""
        async with self._locks[digest]:
            data = await asyncio.to_thread(self._file.find, digest)
            if data is None:
                data = await self._from(digest, bound, givers)
                if data is None:
                    return None
                try:
                    put, handed_on = self._file.put, partial(_handed_on, self._job.state)
                    await asyncio.to_thread(put, bound.round, digest, data, handed_on)
                except errors.Unavailable as error:
                    self._tell_rarely("not_kept", step=bound.round, reason=error.message)
                    return data
                stage, bucket = bound.bucket
                self._tell("bytes_kept", step=bound.round, stage=stage, bucket=bucket)
        if digest in self._in_work():
            at = self._clock()
            self._job.record(Held(COORDINATOR, frozenset({digest}), at))
        return data

    async def _from(self, digest: Digest, bound: Bound, givers: Iterable[PeerId]) -> bytes | None:
        span = max(SHORTEST_FETCH, self._job.state.terms.deliver_ms / 1000 * SHARE_OF_ONE)
        for peer in dict.fromkeys((*givers, *bound.givers, *self._holders(digest, bound.bucket))):
            async with self._lanes_of[peer], self._lanes:
                if self._bound(digest) is None:  # it is not wanted any more
                    return None
                try:
                    data = await self._ask(peer, digest, span)
                    await asyncio.to_thread(self._check, bound, data)
                except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                    about = {"peer": peer, "code": error.code, "reason": error.message}
                    step = self._job.state.round
                    self._tell_rarely("call_failed", step=step, duty="GetBytes", **about)
                else:
                    return data
        return None

    def _holders(self, digest: Digest, bucket: Bucket) -> list[PeerId]:
        """Who said to hold it; after the seal everybody who applies it."""
        open, layout = self._job.state.open, self._job.state.terms.layout
        held = {} if open is None else open.held
        said = [peer for peer, own in sorted(held.items()) if digest in own]
        if said or digest in self._in_work():
            return [peer for peer in said if peer != COORDINATOR]
        members = self._job.state.members.values()
        return sorted(m.peer for m in members if bucket in layout.outputs[m.group])

    def _check(self, bound: Bound, data: bytes) -> None:
        self._forms.need("part", data, bound.output.digest)
        size, norm = self._elements[bound.bucket], bound.output.norm_squared
        self._forms.need_part(bound.what, bound.bucket[1], data, size, norm)

    async def _ask(self, peer: PeerId, digest: Digest, span: float) -> bytes:
        if peer not in self._job.record_of_job.leases:
            raise errors.PeerUnreachable("nobody of that name is known")
        session = self._sessions().get(self._job.key_of(peer))
        if session is None:
            raise errors.PeerUnreachable("the peer has no session", peer=peer.hex())
        request = calls.GetBytes(job=self._job.record_of_job.job, digest=digest)
        _, tensors = await ask(session, calls.GET_BYTES, request, deadline=span)
        return bytes(tensors[0]) if tensors else b""

    # -------------------------------------------------------------------------------- who asks us

    async def get(self, asked: Question[calls.GetBytes]) -> Answered[calls.Done]:
        """Bytes that a member or an auditor lacks.

        Raises:
            Conflict: they are of no claim that is exchanged now, and of no audit that the caller
                owes; or a shard before RoundClosed.
            Unavailable: nothing came yet. NotFound: nothing came, and a Notice says so.
        """
        asker, digest = peer_id(asked.caller), Digest(asked.request.digest)
        async with self._turns[asker]:  # one answer at a time is in our memory for each
            bound = self._bound(digest) if asker in self._job.state.members else None
            if bound is None:
                return calls.Done(), [await self._for_auditor(asker, digest)]
            is_closed = not isinstance(self._job.state.phase, Work | Commit)
            if bound.round == self._job.state.round and not is_closed:
                raise errors.Conflict("a shard is for its reducer before RoundClosed")
            data = await self._fetched(digest, bound, ())
            if data is None:
                raise errors.Unavailable("nobody gives it now", digest=digest.hex())
            return calls.Done(), [data]

    async def _for_auditor(self, auditor: PeerId, digest: Digest) -> bytes:
        lack = self._lack(auditor, digest)
        name = (lack.subject, auditor)
        search = self._searches.setdefault(name, Search(self._clock()))
        found, is_sure = await self._from_holders(lack)
        if found is None:
            raise self._missing(auditor, lack, search, is_sure=is_sure)
        if search.round is None:  # it goes on, and its time with it
            self._searches.pop(name, None)
        self._tell("data_found", step=self._job.state.round, peer=auditor)
        return found

    def _lack(self, auditor: PeerId, digest: Digest) -> Lack:
        work = self._job.sealed_work
        for late in self._job.record_of_job.checking.awaited():
            if late.auditor != auditor:
                continue
            try:
                sort = work.needed_by(late.subject).get(digest)
                claim = work.audited(late.subject).claim
            except errors.NotFound:
                continue
            if sort is not None:
                others = (*work.holders_of(digest), *self._beside(claim, sort), *late.heard)
                holders = dict.fromkeys((*(p for p in others if p != claim.peer), claim.peer))
                group = claim.group
                return Lack(digest, sort, late.subject, group, claim.peer, tuple(holders))
        raise errors.Conflict("nobody asks for an audit that needs this", digest=digest.hex())

    def _beside(self, claim: WorkClaim, sort: Sort) -> list[PeerId]:
        """Members that may have taken over what a reducer fetched."""
        members = self._job.state.members.values()
        return [m.peer for m in members if m.group == claim.group] if sort == "part" else []

    async def _from_holders(self, lack: Lack) -> tuple[bytes | None, bool]:
        """What fits, else None; and whether every holder that is a member has said no."""
        holders = [peer for peer in lack.holders if peer in self._job.state.members]
        longest, is_sure = calls.LONGEST_SEARCH / (len(holders) + 1), True
        for peer in holders:
            span = min(longest, ASKED_AGAIN) if peer in self._silent else longest
            try:
                data = await self._ask(peer, lack.digest, span)
                self._silent.discard(peer)
                await asyncio.to_thread(self._forms.need, lack.sort, data, lack.digest)
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                if isinstance(error, errors.DeadlineExceeded):
                    self._silent.add(peer)
                is_sure &= not isinstance(error, errors.Unavailable)
                about = {"peer": peer, "code": error.code, "reason": error.message}
                self._tell("not_found", step=self._job.state.round, **about)
            else:
                return data, True
        return None, is_sure

    def _missing(
        self, auditor: PeerId, lack: Lack, search: Search, *, is_sure: bool
    ) -> errors.Unavailable | errors.NotFound:
        """What to answer when nothing came; NotFound only with a Notice that says so."""
        now, round = self._clock(), self._job.state.round
        if search.round is None:
            search = Search(search.at, round)
            self._searches[lack.subject, auditor] = search
        is_over = is_sure or now - search.at >= self._grace
        if search.round == round or not is_over:
            return errors.Unavailable("its holders are asked again in the next round")
        if not self._is_noticed(lack.subject):
            due = NoticeDue("missing_data", lack.doer, lack.group, lack.subject)
            if not self._job.check(now, notices=[due]):
                return errors.Unavailable("no Notice can be given now")
            self._noticed.add(lack.subject)
            self._tell("data_missing", step=round, peer=lack.doer, subject=lack.subject)
        return errors.NotFound("nothing fitting came from any holder", digest=lack.digest.hex())

    def _is_noticed(self, subject: Digest) -> bool:
        pending = (each.message for each in self._job.pending(Notice))
        said = {each.evidence for each in pending if each.what == "missing_data"}
        return subject in self._noticed | said

    # --------------------------------------------------------------------- what deadlines look at

    @property
    def _grace(self) -> int:
        return self._job.record_of_job.spec.rules.commit_timeout

    @property
    def waits(self) -> bool:
        """Whether a search can only go on in a later round."""
        return any(search.round == self._job.state.round for search in self._searches.values())

    def excuses(self, late: Late) -> bool:
        """Whether an auditor waits for us, or for what we have just said.

        It audits one thing after another, so all its reports have to wait.
        """
        return any(auditor == late.auditor for _, auditor in self._searches)

    @property
    def longest_excuse(self) -> int:
        """Milliseconds that one report may wait for us: all holders are asked twice."""
        return 2 * (self._grace + round(1000 * calls.LONGEST_SEARCH))

    def forget_others(self, awaited: Iterable[Late]) -> None:
        """Only for these reports anybody looks."""
        names = {(each.subject, each.auditor) for each in awaited}
        self._searches = {name: each for name, each in self._searches.items() if name in names}


def _handed_on(state: RoundState) -> Set[Digest]:
    """Shards of earlier rounds that the round in work may merge."""
    claims = state.open.claims.values() if state.open is not None else ()
    handed_on = (claim for claim in claims if claim.round < state.round)
    return {output.digest for claim in handed_on for output in claim.outputs}


class KeptFile:
    """One table in a file, bytes under their digest; safe to use from several threads.

    A task that is cancelled leaves its statement running in its thread. Closing waits for it: a
    connection that is closed in the middle of a statement ends the process.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file; raises Unavailable."""
        self._path, self._lock = path, threading.Lock()
        try:
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise errors.Unavailable(f"cannot open {path}: {error}") from error
        self._run(
            "CREATE TABLE IF NOT EXISTS kept (digest BLOB PRIMARY KEY, round INTEGER, data BLOB)"
        )

    def put(
        self, round: int, digest: Digest, data: bytes, handed_on: Callable[[], Set[Digest]]
    ) -> None:
        """On disk when this returns; raises Unavailable.

        If there is no room what is of earlier rounds goes, but for what was `handed_on`. That may
        take half of the room, so that it is never in the way of the round's own work.
        """
        most = MOST_BYTES
        if self._size() + len(data) > MOST_BYTES // 2:
            needed = handed_on()
            most = MOST_BYTES // 2 if digest in needed else MOST_BYTES
            if self._size() + len(data) > most:
                self.drop(round - 1, needed)
        if (size := self._size()) + len(data) > most:
            raise errors.Unavailable(f"{self._path}: {size} bytes wait for members that are behind")
        self._run("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", digest, round, data)

    def _size(self) -> int:
        ((size,),) = self._run("SELECT coalesce(sum(length(data)), 0) FROM kept")
        return int(size)

    def find(self, digest: Digest) -> bytes | None:
        """The bytes under a digest, if they are here; raises Unavailable."""
        rows = self._run("SELECT data FROM kept WHERE digest = ?", digest)
        return rows[0][0] if rows else None

    def drop(self, round: int, needed: Set[Digest]) -> None:
        """Forget what is of `round` and before and not `needed`; raises Unavailable."""
        for (digest,) in self._run("SELECT digest FROM kept WHERE round <= ?", round):
            if digest not in needed:
                self._run("DELETE FROM kept WHERE digest = ?", digest)

    def close(self) -> None:
        """Close the file; what is asked of it later raises Unavailable."""
        with self._lock:
            self._base.close()

    def _run(self, statement: str, *values: object) -> list[tuple[Any]]:
        try:
            with self._lock:
                return self._base.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise errors.Unavailable(f"{self._path}: {error}") from error
