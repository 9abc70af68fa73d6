"""What the coordinator asks of its members: three exchanges, one task a member.

A task remembers nothing: it asks `owed` what comes next, calls, and records the answer. A call that
fails is simply still owed. So a member that returns, or a coordinator that restarts, goes on where
the journal is. A task is woken when the machine says that what its member is owed has changed
(`Send`), and gives up calls that are owed no more.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import TypeAlias

from contracts.terms import errors
from contracts.terms.history import Leaves, decode_kept, kept_digest
from contracts.terms.ids import Digest, PeerId
from contracts.terms.items import count, numbers_of, ranges_of
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, decode_signed, expect, verify_session
from contracts.terms.work import WorkClaim
from training.backoff import Backoff
from training.coordinator.acceptance import check_reduced, check_work
from training.coordinator.board import Board
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock
from training.rounds import events
from training.rounds.owed import ApplySeal, AskBuckets, AskClaim, all_applied, owed
from training.rounds.state import Reduce
from training.strategies.port import Bucket
from training.tasks import end, first_error
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import ask

Pause = Callable[[float], Awaitable[None]]
Call: TypeAlias = Callable[[Session], Awaitable[None]]

RETRY, LONGEST_RETRY = 0.2, 5.0  # seconds between two tries of a call that failed
LONGEST_CALL = 600.0
SHORTEST_CALL = 1.0


class Driver:
    """Calls to one member after the other's answer."""

    def __init__(
        self,
        job: JobJournal,
        transport: Transport,
        board: Board,
        *,
        clock: Clock,
        tell: Tell,
        pause: Pause,
        on_applied: Callable[[], Awaitable[None]],
    ) -> None:
        """`board`: knows what sessions have carried; `on_applied`: a member has applied a seal."""
        self._job, self._transport, self._board = job, transport, board
        self._clock, self._tell_rarely, self._pause = clock, Rarely(tell), pause
        self._on_applied = on_applied
        self._wakes: defaultdict[PeerId, asyncio.Event] = defaultdict(asyncio.Event)

    def wake(self, effect: events.Send) -> None:
        """What these members are owed has changed."""
        for peer in effect.peers:
            self._wakes[peer].set()

    async def serve(self, peer: PeerId) -> None:
        """Do for `peer` whatever is owed to it, for ever; cancelled when the job is over."""
        wake, under_way = self._wakes[peer], dict[object, asyncio.Task[None]]()
        with first_error():
            async with asyncio.TaskGroup() as group:
                while True:
                    wake.clear()
                    wanted = self._owed(peer)
                    under_way = {n: task for n, task in under_way.items() if not task.done()}
                    over = [under_way.pop(name) for name in under_way.keys() - wanted.keys()]
                    await end(over)
                    for name in wanted.keys() - under_way.keys():
                        under_way[name] = group.create_task(self._insist(peer, name, *wanted[name]))
                    await wake.wait()

    def _owed(self, peer: PeerId) -> Mapping[object, tuple[str, Call]]:
        """Calls that are owed now, by what makes one another call."""
        match exchange := owed(self._job.state, peer):
            case ApplySeal():
                return {exchange: ("seal", partial(self._hand_seal, peer, exchange))}
            case AskClaim(round, seq, items):
                call = partial(self._ask_claim, peer, exchange)
                return {("claim", round, seq, items): ("commit", call)}
            case AskBuckets(closed, buckets):
                return {
                    ("bucket", closed.round, bucket): (
                        "reduce",
                        partial(self._ask_bucket, peer, bucket),
                    )
                    for bucket in buckets
                }
        return {}

    async def _insist(self, peer: PeerId, name: object, duty: str, call: Call) -> None:
        """Call until it is not owed any more."""
        backoff = Backoff(RETRY, LONGEST_RETRY)
        while True:
            try:
                session = self._transport.sessions.get(self._job.key_of(peer))
                if session is None:
                    raise errors.PeerUnreachable("the peer has no session", peer=peer.hex())
                await call(session)
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                about = {"peer": peer, "duty": duty, "code": error.code, "reason": error.message}
                self._tell_rarely("call_failed", step=self._job.state.round, **about)
            if name not in self._owed(peer):
                return
            await self._pause(backoff.next())

    def _time_left(self) -> float:
        ends: UnixMillis | None = getattr(self._job.state.phase, "ends", None)
        left = LONGEST_CALL if ends is None else (ends - self._clock()) / 1000
        return min(LONGEST_CALL, max(SHORTEST_CALL, left))

    # ------------------------------------------------------------------------------------ the seal

    async def _hand_seal(self, peer: PeerId, exchange: ApplySeal, session: Session) -> None:
        items = self._job.items_of(exchange.round)
        carried = self._board.carried(session)
        answer = await self._send_seal(session, items, carried)
        if answer.lacks:
            answer = await self._send_seal(session, items, frozenset())
        if answer.lacks or answer.round != exchange.round:
            raise errors.Malformed(f"no receipt for round {exchange.round}")
        await self._job.record_soon(events.Applied(peer, exchange.round, self._clock()))
        await self._on_applied()

    async def _send_seal(
        self,
        session: Session,
        items: Sequence[tuple[Digest, bytes]],
        carried: Set[Digest],
    ) -> calls.SealTaken:
        request = calls.TakeSeal(
            members=self._board.members_for(session),
            names=tuple(name for name, _ in items),
            all_applied=all_applied(self._job.state),
        )
        sent = [data for name, data in items if name not in carried]
        answer, _ = await ask(session, calls.TAKE_SEAL, request, sent, deadline=LONGEST_CALL)
        return answer

    # ----------------------------------------------------------------------------------- the claim

    async def _ask_claim(self, peer: PeerId, asked: AskClaim, session: Session) -> None:
        open = self._job.state.open
        if open is None or peer not in self._job.state.members:
            return
        results = open.counted[self._job.state.members[peer].group]
        given = [item for item in asked.items if item in results and results[item].given]
        request = calls.Commit(
            job=self._job.record_of_job.job,
            round=asked.round,
            items=ranges_of(asked.items),
            given=ranges_of(given),
        )
        answer, tensors = await ask(session, calls.COMMIT, request, deadline=self._time_left())
        if answer.lacks:
            if count(answer.lacks) > len(asked.items):
                raise errors.Malformed("lacks more than it was asked for")
            lacked = asked.items.intersection(numbers_of(answer.lacks))
            lost = events.ItemsLost(peer, tuple(sorted(lacked)), self._clock())
            self._job.record(lost)
            return
        if len(tensors) != 2 * (answer.num_reports + 1):
            raise errors.Malformed("a claim and the reports that it names come with their leaves")
        pairs = [
            _pair(bytes(a), bytes(b)) for a, b in zip(tensors[::2], tensors[1::2], strict=True)
        ]
        if any(signed.message.peer != peer for signed, _ in pairs):
            raise errors.Malformed("a peer hands in its own claims")
        for signed, leaves in pairs[:-1]:
            self._job.take_report(signed, leaves.leaves, self._clock())
        signed, leaves = pairs[-1]
        claim = signed.message
        if open is self._job.state.open and claim.digest() in open.claims:
            return  # of items that it had claimed before: what is asked for is its duty next
        reports = self._job.reports_named()
        check_work(self._job.state, self._job.record_of_job, claim, leaves.leaves, reports)
        self._job.record(events.WorkClaimed(claim, self._clock()), signed, leaves)
        own = [kept_digest(item) for pair in pairs for item in pair]
        self._board.carried(session).update(own)

    # ---------------------------------------------------------------------------------- the bucket

    async def _ask_bucket(self, peer: PeerId, bucket: Bucket, session: Session) -> None:
        state = self._job.state
        if not isinstance(state.phase, Reduce):
            return
        _, tensors = await ask(
            session,
            calls.REDUCE,
            calls.Reduce(bucket=bucket[1]),
            [self._board.encoded(state.phase.closed.digest())],
            deadline=max(SHORTEST_CALL, state.terms.reduce_ms / 1000),
        )
        if len(tensors) != 1:
            raise errors.Malformed("one claim of a bucket was asked for")
        signed = expect(decode_signed(bytes(tensors[0])), WorkClaim)
        phase = self._job.state.phase
        asked = phase.owing.get(peer, frozenset()) if isinstance(phase, Reduce) else frozenset()
        if signed.message.peer != peer or bucket not in asked:
            raise errors.Malformed("a bucket that its sender was not asked for")
        check_reduced(self._job.state, self._job.record_of_job, signed.message, [bucket])
        verify_session(signed, self._job.key_of(peer))
        self._job.record(events.Reduced(signed.message, signed.signature, self._clock()))


def _pair(claim: bytes, leaves: bytes) -> tuple[Signed[WorkClaim], Leaves]:
    signed, item = expect(decode_signed(claim), WorkClaim), decode_kept(leaves)
    if not isinstance(item, Leaves) or item.claim != signed.message.digest():
        raise errors.Malformed("a claim is followed by its leaves")
    return signed, item
