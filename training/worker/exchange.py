"""What a round exchanges: shards that we reduce, buckets that we reduce, buckets that we apply.

Invariants
- Nothing is kept whose length, digest and norm are not those that a claim binds.
- A bucket is reduced once a round, over all claims that its RoundClosed names; its bytes are on
  disk and its claim in the journal before anybody hears of it. The order of a sum is that of the
  claims, whoever's shard came first.
- Of what is fetched a few at a time are on their way, and fewer from one peer, so that a silent one
  does not keep us from the others.
- Before RoundClosed a shard is asked of its owner alone: until then it is for its reducer.

The coordinator tells by `round.claims` what there is, and hears by `round.held` what is here. What
cannot be had is tried again while the round lasts.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.history import Kept, kept_digest
from contracts.terms.ids import MAX_PEERS, ZERO_DIGEST, Digest, PeerId, StepNumber
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed, decode_signed, expect, verify_session
from contracts.terms.work import Output, RoundClosed, WorkClaim
from training.averaging.slices import in_peer_order
from training.backoff import Backoff
from training.changes import Changes
from training.strategies.port import Bucket, Shard
from training.tasks import all_of, end
from training.telling import Rarely, Span
from training.transport.calls import GET_CLAIMS, HELD, MAX_NAMES, GetClaims, Held
from training.worker.book import OwnClaim
from training.worker.peers import NEXT
from training.worker.station import Station
from training.worker.store import Kind
from training.worker.turns import Rank

FETCHES, FETCHES_OF_ONE = 4, 2  # on their way to us at once, in all and from one peer
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds
MOST_CLAIMS = 2 * MAX_PEERS  # of a round that we remember


@dataclass
class _Heard:
    """What we know of the round in work, and what is under way for it."""

    claims: dict[Digest, WorkClaim] = field(default_factory=dict)  # of work
    closed: RoundClosed | None = None
    reduces: set[Bucket] = field(default_factory=set)
    holds: set[Digest] = field(default_factory=set)  # shards for others, that we do not reduce
    kept: dict[Digest, Kept] = field(default_factory=dict)  # all of it, as a seal names it
    held: dict[Digest, None] = field(default_factory=dict)  # that the coordinator is to know of
    shards: dict[tuple[Digest, Bucket], asyncio.Task[None]] = field(default_factory=dict)
    reducing: dict[Bucket, asyncio.Task[OwnClaim]] = field(default_factory=dict)
    fetching: dict[Digest, asyncio.Task[None]] = field(default_factory=dict)
    tries: defaultdict[Digest, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    """Of buckets: they are fetched once for all who want them."""

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """All that is under way."""
        return [*self.shards.values(), *self.reducing.values(), *self.fetching.values()]


class Exchange:
    """Of one lease."""

    def __init__(self, station: Station) -> None:
        self._at, self._heard = station, _Heard()
        self._tell_rarely = Rarely(station.tell)
        self._news, self._held_news = Changes(), Changes()
        self._lanes = asyncio.Semaphore(FETCHES)
        self._lanes_of: dict[PeerId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(FETCHES_OF_ONE)
        )

    async def begin_round(self) -> None:
        """Forget the round that is over, and give up what is under way for it."""
        over, self._heard = self._heard, _Heard()
        self._lanes_of.clear()
        await end(over.tasks)

    async def close(self) -> None:
        """Give up what is under way."""
        await end(self._heard.tasks)

    @property
    def kept(self) -> dict[Digest, Kept]:
        """What we were told of the round in work, by the names that a seal call gives it."""
        return self._heard.kept

    # -------------------------------------------------------------------------------- the session

    async def talk(self) -> None:
        """Hear of the round and tell what is here, in one session, until cancelled."""
        await asyncio.gather(self._listen(), self._tell_held())

    async def _listen(self) -> None:
        backoff, seen, seen_of = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0, StepNumber(0)
        while True:
            round, version = self._at.round, self._at.sealed_changes.version
            if seen_of != round:
                seen, seen_of = 0, round
            request = GetClaims(job=self._at.peers.job, round=round, seen=seen)
            try:
                answer, tensors = await self._at.peers.ask_coordinator(
                    GET_CLAIMS, request, deadline=NEXT
                )
                if answer.members:
                    self._at.peers.set_members(answer.members)
                if (self._at.round, answer.round) == (round, round):
                    self._heard.reduces |= {(self._at.group, each) for each in answer.reduces}
                    self._heard.holds = set(answer.holds)
                    self._hear(tensors)
                    seen = answer.seen
                    backoff.begin()
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                about = {"step": round, "code": error.code, "reason": error.message}
                self._tell_rarely("no_claims", **about)
                await asyncio.sleep(backoff.next())
                continue
            if self._at.round == round != answer.round:  # its seal is on the way to us
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await self._at.sealed_changes.beyond(version)

    def _hear(self, tensors: Sequence[memoryview]) -> None:
        for tensor in tensors:
            try:
                self._take(decode_signed(bytes(tensor)))
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                about = {"step": self._at.round, "code": error.code, "reason": error.message}
                self._tell_rarely("claim_refused", **about)
        self._begin_fetches()
        self._news.mark()

    def _take(self, signed: Signed[Message]) -> None:
        """Believe a message, if it is signed by whom it binds and of this round.

        Raises:
            BadSignature, Conflict, PeerUnreachable: it is not. Malformed: it says other buckets.
            Equivocation: another RoundClosed is known.
        """
        heard, message = self._heard, signed.message
        if isinstance(message, RoundClosed):
            self._take_closed(expect(signed, RoundClosed))
        elif isinstance(message, WorkClaim):
            self._at.peers.verify(expect(signed, WorkClaim))
            if message.job != self._at.peers.job or len(heard.kept) >= MOST_CLAIMS:
                raise errors.Conflict("a claim of another job, or one too many")
            if message.what == "work":
                own = [number for _, number in self._at.layout.outputs.get(message.group, ())]
                if [output.bucket for output in message.outputs] != own:
                    raise errors.Malformed("outputs are not all buckets of a group")
                heard.claims[message.digest()] = message
            elif message.what == "bucket":
                self._need_of(message)
                self._begin_bucket(message)
        else:
            raise errors.Malformed(f"a {message.kind} is not exchanged")
        heard.kept[kept_digest(signed)] = signed

    def _take_closed(self, signed: Signed[RoundClosed]) -> RoundClosed:
        closed = signed.message
        verify_session(signed, self._at.book.record.opening.session_key)
        if closed.job != self._at.peers.job:
            raise errors.Conflict("the RoundClosed of another job")
        self._at.need_round(closed.round)
        if (known := self._heard.closed) is None:
            self._heard.closed = closed
            self._heard.kept[kept_digest(signed)] = signed
            about = {"stage": self._at.group, "claims": len(closed.claims)}
            self._at.tell("round_closed", step=closed.round, **about)
        elif known != closed:
            raise errors.Equivocation(f"two RoundClosed of round {closed.round}")
        return closed

    def _need_of(self, bucket: WorkClaim) -> None:
        closed = self._heard.closed
        if closed is None or bucket.subject != closed.digest():
            raise errors.Conflict("a bucket of another RoundClosed")

    def _begin_fetches(self) -> None:
        """Of what we reduce, and what we hold for others, as soon as it is claimed."""
        closed, holds = self._heard.closed, self._heard.holds
        weights = None if closed is None else closed.weights
        for name, claim in (self._heard.claims if weights is None else self._known()).items():
            if weights is None or name in weights:
                for bucket in self._heard.reduces:
                    self._shard(name, claim, bucket)
                if holds:
                    own = zip(self._at.layout.outputs[claim.group], claim.outputs, strict=True)
                    for bucket in [each for each, output in own if output.digest in holds]:
                        self._shard(name, claim, bucket)
        if closed is not None:
            dealt = zip(self._at.layout.buckets, closed.reducers, strict=False)
            for bucket in [each for each, peer in dealt if peer == self._at.peer]:
                self._reduced(bucket)

    def _known(self) -> dict[Digest, WorkClaim]:
        """Claims that this round may merge: those of it, and those of void rounds before it."""
        pending = (each.message for each in self._at.book.history.pending.values())
        before = {each.digest(): each for each in pending if isinstance(each, WorkClaim)}
        own = {each.name: each.claim for each in self._at.book.bound.work}
        return self._heard.claims | own | before

    # ---------------------------------------------------------------------------- what is here

    def _note_held(self, digest: Digest) -> None:
        self._heard.held[digest] = None
        self._held_news.mark()

    async def _tell_held(self) -> None:
        """Each session hears of all that is here of the round, then of what comes."""
        backoff, told, told_of = Backoff(FIRST_PAUSE, LONGEST_PAUSE), set[Digest](), StepNumber(0)
        version = 0
        while True:
            await self._held_news.beyond(version)
            version, round, heard = self._held_news.version, self._at.round, self._heard
            if told_of != round:
                told, told_of = set(), round
            if not (news := [each for each in heard.held if each not in told][:MAX_NAMES]):
                continue
            request = Held(job=self._at.peers.job, round=round, digests=tuple(news))
            try:
                await self._at.peers.ask_coordinator(HELD, request)
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                about = {"step": round, "code": error.code, "reason": error.message}
                self._tell_rarely("not_told_held", **about)
                await asyncio.sleep(backoff.next())
                self._held_news.mark()
            else:
                backoff.begin()
                told.update(news)

    # --------------------------------------------------------------------------------- fetching

    @asynccontextmanager
    async def _lane(self, owner: PeerId) -> AsyncIterator[None]:
        async with self._lanes_of[owner], self._lanes:
            yield

    async def _until_held(self, about: str, fetch: Callable[[], Awaitable[None]]) -> None:
        """Fetch, again and again; raises Misbehaved: what was bound is of no use to anybody."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return await fetch()
            except (errors.Unavailable, errors.Refused) as error:
                said = {"code": error.code, "reason": error.message}
                self._tell_rarely(about, step=self._at.round, **said)
            await asyncio.sleep(backoff.next())

    def _shard(self, name: Digest, claim: WorkClaim, bucket: Bucket) -> asyncio.Task[None] | None:
        """What takes the shard that a claim gives to a bucket; None: it gives none."""
        if bucket not in self._at.layout.outputs[claim.group]:
            return None
        if (task := self._heard.shards.get((name, bucket))) is None:
            output = claim.outputs[self._at.layout.outputs[claim.group].index(bucket)]
            fetch = partial(self._take_shard, claim, bucket, output)
            task = asyncio.create_task(self._until_held("shard_not_fetched", fetch))
            task.add_done_callback(_heard_of)
            self._heard.shards[name, bucket] = task
        return task

    async def _take_shard(self, claim: WorkClaim, bucket: Bucket, output: Output) -> None:
        at, digest = self._at, output.digest
        if not await at.holds(digest, "part"):
            span = Span()
            async with self._lane(claim.peer):
                span.begin()
                holders = [] if claim.peer == at.peer else [claim.peer]
                data = await self._fetched(output, bucket, holders, self._heard.closed is not None)
            await self._keep("lent", claim, output, bucket, data)
            about = {"stage": at.group, "bucket": bucket[1], "peer": claim.peer}
            at.tell("shard_stored", step=at.round, **about, **span.take_timings())
        elif at.store.newest_round(digest) < claim.round:  # whoever lies may send a shard twice
            data = await at.read(digest, "part")
            await self._keep("lent", claim, output, bucket, data)
        if claim.peer != at.peer:
            self._note_held(digest)

    async def _fetched(
        self, output: Output, bucket: Bucket, holders: Sequence[PeerId], is_found: bool
    ) -> Buffer:
        """Bytes from holders, else, if that may be, from the coordinator."""
        peers = self._at.peers
        most = peers.forms.part_bytes(self._at.elements[bucket])
        try:
            return await peers.fetch(output.digest, "part", holders, most_bytes=most)
        except (errors.Unavailable, errors.NotFound):
            if not is_found:
                raise
        try:
            return await peers.find(output.digest, "part", most_bytes=most)
        except (errors.Misbehaved, errors.Refused) as error:  # somebody may still give them
            raise errors.Unavailable(error.message) from error

    async def _keep(
        self, kind: Kind, claim: WorkClaim, output: Output, bucket: Bucket, data: Buffer
    ) -> None:
        """Keep bytes that have the right digest.

        Raises:
            WrongBytes: they are not of the length or norm that was bound. NotFinite: inf or nan.
        """
        at, forms = self._at, self._at.peers.forms

        def check_and_keep() -> None:
            size, norm = at.elements[bucket], output.norm_squared
            forms.need_part(claim.what, bucket[1], data, size, norm)
            at.store.put(kind, claim.round, output.digest, data)

        await at.engine.run_io(check_and_keep)

    # --------------------------------------------------------------------------------- reducing

    async def reduce(self, signed: Signed[RoundClosed], bucket: Bucket) -> OwnClaim:
        """Our claim of a bucket, as soon as all shards are here.

        Raises:
            BadSignature: not the coordinator's. Conflict: no bucket of ours, or another round.
            Equivocation: another RoundClosed is known, or was reduced.
            Misbehaved: a shard is of no use to anybody.
        """
        if bucket not in self._at.layout.reduced_in(self._at.group):
            raise errors.Conflict("a bucket of another group")
        self._take_closed(signed)
        self._news.mark()
        return await asyncio.shield(self._reduced(bucket))

    def _reduced(self, bucket: Bucket) -> asyncio.Task[OwnClaim]:
        task = self._heard.reducing.get(bucket)
        if task is None or (task.done() and not task.cancelled() and task.exception() is not None):
            task = asyncio.create_task(self._reduce(bucket))
            task.add_done_callback(_heard_of)
            self._heard.reducing[bucket] = task
        return task

    async def _reduce(self, bucket: Bucket) -> OwnClaim:
        merged = await self._merged()
        groups = [group for group, own in self._at.layout.outputs.items() if bucket in own]
        terms = in_peer_order(merged, groups)
        shards = (self._shard(each.digest(), each, bucket) for each in terms)
        await all_of(_awaited(task) for task in shards if task is not None)
        return await self._at.engine.at(Rank.STEP, lambda: self._bind(bucket, terms))

    async def _merged(self) -> list[WorkClaim]:
        """All claims that RoundClosed names: without one of them every mean would be false."""
        while True:
            version, known, closed = self._news.version, self._known(), self._heard.closed
            if closed is not None and closed.weights.keys() <= known.keys():
                return [known[name] for name, _ in closed.claims]
            await self._news.beyond(version)

    async def _bind(self, bucket: Bucket, terms: Sequence[WorkClaim]) -> OwnClaim:
        at, closed, place = self._at, self._heard.closed, bucket[1]
        assert closed is not None  # by `_merged`
        at.need_round(closed.round)
        subject, given = closed.digest(), closed.weights
        own = at.book.bound.buckets.get(place)
        if own is not None and own.claim.subject != subject:
            raise errors.Equivocation(f"two RoundClosed of round {closed.round}")
        if own is None or not await at.holds(own.claim.outputs[0].digest, "part"):
            weights = {each.digest(): (each.group, given[each.digest()]) for each in terms}
            shards = self._read(bucket, terms)
            reduce = partial(at.strategy.reduce, bucket, shards, weights)
            output, data = await at.engine.run(reduce)
            put = partial(at.store.put, "buckets", closed.round, output.digest, data)
            await at.engine.run_io(put)
            own = own or self._claimed(subject, output)
        self._heard.kept[kept_digest(own.kept[0])] = own.kept[0]
        self._note_held(own.claim.outputs[0].digest)
        return own

    def _read(self, bucket: Bucket, terms: Sequence[WorkClaim]) -> Iterator[Shard]:
        """Shards from disk, one after another, in the thread that computes."""
        for claim in terms:
            output = claim.outputs[self._at.layout.outputs[claim.group].index(bucket)]
            yield Shard(claim.digest(), self._at.store.read(output.digest))

    def _claimed(self, subject: Digest, output: Output) -> OwnClaim:
        at = self._at
        message = WorkClaim(
            job=at.book.record.job,
            peer=at.peer,
            previous=at.book.record.previous,
            round=at.round,
            what="bucket",
            group=at.group,
            seq=0,
            attempt=0,
            base=ZERO_DIGEST,
            items=(),
            subject=subject,
            leaves=ZERO_DIGEST,
            outputs=(output,),
            reports=(),
        )
        own = OwnClaim(at.session.sign(message))
        at.book.keep_claim(own)
        at.tell("bucket_stored", step=at.round, stage=at.group, bucket=output.bucket)
        return own

    # ------------------------------------------------------------------------- buckets we apply

    def _begin_bucket(self, claim: WorkClaim) -> None:
        is_ours = (claim.group, claim.bucket) in self._at.layout.outputs[self._at.group]
        if is_ours and claim.peer != self._at.peer and claim.digest() not in self._heard.fetching:
            fetch = partial(self._take_bucket, claim)
            task = asyncio.create_task(self._until_held("bucket_not_fetched", fetch))
            task.add_done_callback(_heard_of)
            self._heard.fetching[claim.digest()] = task

    async def _take_bucket(self, claim: WorkClaim) -> None:
        await self.have(claim)
        self._note_held(claim.outputs[0].digest)

    async def have(self, claim: WorkClaim) -> None:
        """Have a bucket that we apply on disk, from its reducer or whoever else has it.

        Raises:
            Unavailable, NotFound: nobody who is reached has it. Misbehaved: it is not what its
                claim says of it.
        """
        async with self._heard.tries[claim.outputs[0].digest]:
            if not await self._at.holds(claim.outputs[0].digest, "part"):
                await self._fetch_bucket(claim)

    async def _fetch_bucket(self, claim: WorkClaim) -> None:
        at, output, bucket = self._at, claim.outputs[0], (claim.group, claim.bucket)
        groups = [group for group, own in at.layout.outputs.items() if bucket in own]
        near = [peer for group in groups for peer in at.peers.mates(group)]
        holders = sorted(near, key=lambda peer: (peer != claim.peer, peer))
        async with self._lane(claim.peer):
            data = await self._fetched(output, bucket, holders, is_found=True)
        await self._keep("buckets", claim, output, bucket, data)
        at.tell("bucket_stored", step=claim.round, stage=at.group, bucket=claim.bucket)


async def _awaited(task: asyncio.Task[None]) -> None:
    """Wait for a task that others may wait for too."""
    await asyncio.shield(task)


def _heard_of(task: asyncio.Task[Any]) -> None:
    """Whoever waits for it hears its error; perhaps nobody does."""
    if not task.cancelled():
        task.exception()
