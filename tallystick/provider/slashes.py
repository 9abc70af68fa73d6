"""What comes of mismatches: bundles that are shown, slashes that owners hear of, lost pay.

An audit leaves its bundle as `evidence/<subject>.bundle` in the folder of the lease, or of the job
that it audits from outside. When the market lists the subject as convicted, with our session key
among those who may show why, the file goes up as a blob and is named under that key. One bundle is
enough as long as nobody doubts it: when its slash was dropped, others show theirs.
Bundles are shown by the process that audits (`Evidence`); those of one that has ended are shown by
the agent (`Slashes`), and removed when nobody needs them any more.

An owner whose work was convicted is told of every change: how much is announced, by which evidence,
and until when the canceller can drop it; its own answer is shown beside that. What an account lost
of its pay, and why, the agent says once and `status` shows: a line that is lost stays lost, so a
sum by reason only ever grows; what is told is the growth.

Invariants: nothing is shown that no seal made slashable; what is named is there; a bundle stays on
disk until a slash took what there was or we have settled, so that a restart shows it again.
Source: docs/protocol.md 5.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Malformed, Misbehaved, NotFound, Refused, TooLarge, Unavailable
from contracts.terms.ids import Address, Digest, JobId
from market.bodies.earnings import EarningView
from market.bodies.routes import (
    GET_CONVICTIONS,
    GET_CONVICTIONS_OF,
    GET_EARNINGS,
    GET_JOB,
    POST_EVIDENCE,
)
from market.bodies.signing import evidence_digest
from market.bodies.slashes import PostEvidence
from tallystick.provider.background import Say
from tallystick.provider.folder import is_settled, load_peer_file
from tallystick.sdk.client import MarketClient
from tallystick.sdk.convictions import ENDED, told_to_owner
from training.tasks import first_error
from training.telling import Tell

# ---------------------------------------------------------------------------------------- evidence

LOOK_EVERY = 2.0  # seconds
PATIENCE = 60.0  # seconds, with a market that does not answer when the job is over
ALL_SEALED = ("finished", "closed", "failed")
"""States of a job in which the market has all of its seals."""

DOUBTED = ("dropped",)
"""States of a slash whose evidence may not hold."""
OVER = ("burned", "nothing")
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


# ----------------------------------------------------------------------------------------- slashes


class Audit(NamedTuple):
    """A folder in which this provider audits a job, or has audited it, and the key that signs."""

    folder: Path
    job: JobId
    key: Path


class Slashes:
    """Of one provider."""

    def __init__(self, client: MarketClient, home: Path, account: Address, say: Say) -> None:
        self._client, self._home, self._account, self._say = client, home, account, say
        self._told: dict[tuple[JobId, Digest], str] | None = None  # None: nobody has looked yet
        self._evidence: dict[Path, Evidence] = {}
        self.is_accused = False  # a slash of this account may still be announced or burned

    async def look(self, busy: Collection[Path] = ()) -> None:
        """Look once; safe to repeat.

        Args:
            busy: Folders whose process runs: it shows its bundles itself.

        Raises:
            Unavailable: the market does not answer now.
            Refused: it answers what no market should.
        """
        await self._tell_of_own()
        for audit in audits_in(self._home):
            if bundles_in(audit.folder):
                with contextlib.suppress(NotFound):  # a market that was set up anew
                    await self._look_after(audit, is_busy=audit.folder in busy)

    async def _tell_of_own(self) -> None:
        told = {} if self._told is None else self._told
        convictions = (
            await self._client.whole(GET_CONVICTIONS_OF, account=self._account)
        ).convictions
        for each in convictions:
            line, name = told_to_owner(each), (each.job, each.subject)
            # Of what was over before this agent began, its owner was told by the one before.
            is_old = self._told is None and each.slash is not None and each.slash.state in ENDED
            if told.get(name) != line and not is_old:
                self._say(line)
            told[name] = line
        self._told = told
        self.is_accused = any(
            each.slash is None or each.slash.state not in ENDED for each in convictions
        )

    async def _look_after(self, audit: Audit, *, is_busy: bool) -> None:
        convictions = (await self._client.whole(GET_CONVICTIONS, job=audit.job)).convictions
        over = {each.subject for each in convictions if each.slash and each.slash.state in OVER}
        for subject, path in bundles_in(audit.folder).items():
            if subject in over or is_settled(audit.folder):
                path.unlink(missing_ok=True)
        if not is_busy:
            await self._shown_by_us(audit).look()

    def _shown_by_us(self, audit: Audit) -> Evidence:
        if audit.folder not in self._evidence:
            session = load_or_create_session(audit.key)
            self._evidence[audit.folder] = Evidence(
                audit.folder, self._client, audit.job, session, self._tell
            )
        return self._evidence[audit.folder]

    def _tell(self, event: str, **fields: object) -> None:
        about = (f"{n}={v.hex() if isinstance(v, bytes) else v}" for n, v in fields.items())
        self._say(" ".join((event, *about)))


def audits_in(home: Path) -> Iterator[Audit]:
    """Where a provider has audited: as a member by its leases, and from outside."""
    for folder in sorted((home / "leases").glob("*")):
        with contextlib.suppress(Malformed):  # its peer was never started
            job = JobId(bytes.fromhex(load_peer_file(folder).job))
            yield Audit(folder, job, folder / "session.key")
    for folder in sorted((home / "audits").glob("*")):
        yield Audit(folder, JobId(bytes.fromhex(folder.name)), home / "audit.key")


# ------------------------------------------------------------------------------------------ losses


def lost_by_reason(lines: Iterable[EarningView]) -> dict[str, BaseUnits]:
    """Base units that lines lost, by the sentence that says why."""
    found: dict[str, BaseUnits] = defaultdict(lambda: BaseUnits(0))
    for line in lines:
        if line.state == "forfeited" and line.waits_for is not None:
            reason = line.waits_for.sentence.removeprefix("lost: ")
            found[reason] = BaseUnits(found[reason] + line.amount)
    return dict(found)


async def losses_in(client: MarketClient, account: Address, job: JobId) -> dict[str, BaseUnits]:
    """What an account lost in a job, by reason; raises NotFound, Unavailable."""
    newest = await client.call(GET_EARNINGS, account=account, job=job, limit=1)
    if not newest.parts.forfeited:
        return {}
    return lost_by_reason((await client.whole(GET_EARNINGS, account=account, job=job)).lines)


class Losses:
    """Tells an owner of each loss once, as long as this agent runs."""

    def __init__(self, client: MarketClient, account: Address, say: Say) -> None:
        self._client, self._account, self._say = client, account, say
        self._told: dict[tuple[JobId, str], BaseUnits] = {}

    async def look(self, jobs: Collection[JobId]) -> None:
        """Look at jobs once; raises Unavailable."""
        for job in sorted(jobs):
            try:
                found = await losses_in(self._client, self._account, job)
            except NotFound:  # a market that was set up anew
                continue
            for reason, amount in found.items():
                more = amount - self._told.get((job, reason), 0)
                self._told[job, reason] = amount
                if more > 0:
                    tokens = format_tokens(BaseUnits(more))
                    self._say(f"{tokens} tokens of job {job.hex()[:12]} are forfeited: {reason}")
