"""One lease from start to end: resume, join, work until the last seal is applied."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from contracts.keys.wallet import Session as SessionKeys
from contracts.terms.errors import Conflict, Refused, Unavailable
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from training.journal import Journal
from training.telling import Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import ask
from training.worker.answers import Answers
from training.worker.book import WorkerBook
from training.worker.peers import Peers
from training.worker.ports import Compute
from training.worker.work import Work

Locate = Callable[[], Awaitable[str | None]]
Pause = Callable[[float], Awaitable[None]]

DIAL, JOIN = 10.0, 60.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


async def run_worker(
    folder: Path,
    spec: Signed[JobSpec],
    opening: Signed[JobOpening],
    lease: Signed[LeaseAccept],
    *,
    domain: Domain,
    session: SessionKeys,
    transport: Transport,
    listen: str,
    locate: Locate,
    compute: Compute,
    tell: Tell,
    pause: Pause = asyncio.sleep,
) -> None:
    """Work under one lease until the job has ended; start again where it was.

    Args:
        folder: Holds journal, parts, chunks and checkpoints, made on first use.
        spec: The job, signed by its poster.
        opening: Signed by the coordinator that the spec names.
        lease: Ours, signed by the provider's wallet; names `session`.
        domain: Where wallet signatures hold.
        session: Our session key.
        transport: Under `session`; served here, closed by the caller.
        listen: `host:port`, port 0 for a free one.
        locate: Where the coordinator listens now.
        compute: The stage; used by this call alone.
        tell: The log.
        pause: Waits between tries.

    Raises:
        BadSignature, Conflict: the documents do not belong together, or to this folder; the job has
            ended, or has gone too far for a newcomer.
        Unavailable: the disk cannot be written, or an averaged chunk is nowhere.
        InvariantBroken: the state could not be built again as it was.
    """
    with Journal(folder / "journal.sqlite") as journal:
        book = WorkerBook(journal, spec, opening, domain)
        peers = Peers(transport, opening.message, tell)
        work = Work(book, compute, folder, peers, session, tell)
        try:
            handler = Answers(work, peers, tell).dispatcher()
            await work.resume()
            address = await transport.serve(handler, listen=listen)
            joining = _Joining(work, peers, transport, lease, address or "", locate, tell, pause)
            await joining.until_over()
        finally:
            await work.close()


class _Joining:
    """Keeps a session with the coordinator, wherever it is."""

    def __init__(
        self,
        work: Work,
        peers: Peers,
        transport: Transport,
        lease: Signed[LeaseAccept],
        address: str,
        locate: Locate,
        tell: Tell,
        pause: Pause,
    ) -> None:
        self._work, self._peers, self._transport = work, peers, transport
        self._lease, self._address = lease, address
        self._locate, self._tell, self._pause = locate, tell, pause

    async def until_over(self) -> None:
        """Join, again whenever the session ends; the coordinator ends it after the last seal."""
        span = FIRST_PAUSE
        while not self._work.is_over:
            try:
                session = await self._join()
                span = FIRST_PAUSE
                await self._while_open(session)
            except Conflict:
                raise  # another job, or one that goes on without us: asking again changes nothing
            except (Unavailable, Refused) as error:
                self._tell("waits", step=self._work.step, code=error.code, reason=error.message)
            if not self._work.is_over:
                await self._pause(span)
                span = min(2 * span, LONGEST_PAUSE)
        self._tell("finished", step=self._work.applied, state_root=self._work.roots.state)

    async def _while_open(self, session: Session) -> None:
        """Wait until the session ends; raises InvariantBroken as soon as the work is broken."""
        closed = asyncio.ensure_future(session.wait_closed())
        either: list[asyncio.Future[Any]] = [closed, self._work.broken]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        if self._work.broken.done():
            raise self._work.broken.result()

    async def _join(self) -> Session:
        hint = await self._locate()
        if hint is None:
            raise Unavailable("the coordinator's address is not known yet")
        opening, job = self._work.book.record.opening, self._work.book.record.job
        session = await self._transport.dial(opening.session_key, [hint], deadline=DIAL)
        request = calls.Join(
            job=job,
            address=self._address,
            applied=self._work.applied,
            held=tuple(
                calls.PlaceView(stage=self._work.stage, unit=unit) for unit in self._work.held()
            ),
        )
        tensors = [self._lease.encoded()]
        try:
            joined, _ = await ask(session, calls.JOIN, request, tensors, deadline=JOIN)
        except (Unavailable, Refused):
            await session.close()  # a refused session would keep us from trying again
            raise
        self._work.take_stage(joined.stage)
        self._peers.set_members(joined.members)
        return session
