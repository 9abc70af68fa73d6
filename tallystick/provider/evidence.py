"""What an auditor does with a mismatch that it found: shows the bundle once a seal made it count.

Its audit leaves the bundle as `evidence/<subject>.bundle` in the folder of the lease, or of the job
that it audits from outside. When the market lists the subject as convicted, with our session key
among those who may show why, the file goes up as a blob and is named under that key. One bundle is
enough as long as nobody doubts it: when it is contested, or was dropped, others show theirs.

Invariants: nothing is shown that no seal made slashable; what is named is there; a bundle stays on
disk until a slash took what there was or the job is refunded (`slashes`), so that a restart
shows it again. Source: docs/protocol.md 5.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from contracts.keys.wallet import Session
from contracts.terms.errors import Misbehaved, Refused, TooLarge, Unavailable
from contracts.terms.ids import Digest, JobId
from market.bodies.routes import GET_CONVICTIONS, GET_JOB, POST_EVIDENCE
from market.bodies.signing import evidence_digest
from market.bodies.slashes import PostEvidence
from tallystick.sdk.client import MarketClient
from training.tasks import first_error
from training.telling import Tell

LOOK_EVERY = 2.0  # seconds
PATIENCE = 60.0  # seconds, with a market that does not answer when the job is over
ALL_SEALED = ("finished", "closed", "refunded", "failed")
"""States of a job in which the market has all of its seals."""

DOUBTED = ("contested", "dropping", "dropped")
"""States of a slash whose evidence may not hold."""
OVER = ("executed", "nothing")
"""States of a slash after which no other bundle is wanted."""

Pause = Callable[[float], Awaitable[None]]


def bundles_in(folder: Path) -> dict[Digest, Path]:
    """Bundles that audits left in a job's folder, by what they are about."""
    found = {}
    for path in sorted((folder / "evidence").glob("*.bundle")):
        with contextlib.suppress(ValueError):  # nothing that we wrote
            found[Digest(bytes.fromhex(path.stem))] = path
    return found


class Evidence:
    """Bundles of one job, shown under the session key that audits there."""

    def __init__(
        self,
        folder: Path,
        client: MarketClient,
        job: JobId,
        session: Session,
        tell: Tell,
        *,
        pause: Pause = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._client, self._job, self._session = folder, client, job, session
        self._tell, self._pause, self._clock = tell, pause, clock
        self._done: set[Digest] = set()  # subjects that are shown, or that we may not show
        self._looking = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show what comes to count while something else is done inside."""
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(self._go_on())
                yield
                async with self._looking:  # what is half shown is shown, and told
                    showing.cancel()

    async def finish(self) -> None:
        """The job is over: show what its last seals made slashable, once the market has them."""
        ends = self._clock() + PATIENCE
        while self._left() and not await self._was_last_look():
            if self._clock() > ends:
                self._tell("evidence_not_shown", bundles=len(self._left()))
                return
            await self._pause(LOOK_EVERY)

    async def look(self) -> None:
        """Show what counts, unless another's bundle shows it undisputed. Safe to repeat.

        Raises:
            Unavailable: the market does not answer.
        """
        left = self._left()
        if not left:
            return
        for each in (await self._client.whole(GET_CONVICTIONS, job=self._job)).convictions:
            path = left.get(each.subject)
            state = None if each.slash is None else each.slash.state
            if state in OVER:
                self._done.add(each.subject)
            elif state not in (None, *DOUBTED) or self._session.peer not in each.auditors:
                continue
            elif path is not None:
                await self._show(each.subject, path)

    def _left(self) -> dict[Digest, Path]:
        found = bundles_in(self._folder)
        return {subject: path for subject, path in found.items() if subject not in self._done}

    async def _go_on(self) -> None:
        while True:
            async with self._looking:
                with self._waiting():
                    await self.look()
            await self._pause(LOOK_EVERY)

    async def _was_last_look(self) -> bool:
        """Look, and say whether any later look could show more."""
        with self._waiting():
            state = (
                await self._client.call(GET_JOB, job=self._job)
            ).state  # before it: no seal comes between
            await self.look()
            return state in ALL_SEALED
        return False

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            self._tell("evidence_waits", code=error.code, reason=error.message)

    async def _show(self, subject: Digest, path: Path) -> None:
        try:
            bundle = await self._client.put_file(path, by=self._session)
            await self._client.call(POST_EVIDENCE, self._named(subject, bundle), job=self._job)
        except OSError as error:  # it may be readable later
            self._tell("evidence_waits", code="os_error", reason=f"{path}: {error.strerror}")
            return
        except (Refused, Misbehaved) as error:
            if isinstance(error, TooLarge) and "used" in error.data:  # its account has no room yet
                self._tell("evidence_waits", code=error.code, reason=error.message)
                return
            # Somebody was faster, or it is never taken.
            self._tell("evidence_refused", subject=subject, code=error.code, reason=error.message)
        else:
            self._tell("evidence_shown", subject=subject, bundle=bundle)
        self._done.add(subject)

    def _named(self, subject: Digest, bundle: Digest) -> PostEvidence:
        signed = evidence_digest(self._job, subject, bundle)
        return PostEvidence(
            subject=subject,
            bundle=bundle,
            session_key=self._session.key,
            signature=self._session.private_key.sign(signed),
        )
