"""What comes of mismatches: bundles that are shown, slashes that owners hear of, lost pay.

An audit leaves its bundle as `evidence/<subject>.bundle` in the folder of the lease, or of the job
that it audits from outside. When the market lists the subject as convicted, with our session key
among those who may show why, the agent sends the file up as a blob and names it under that key. One
bundle is enough as long as nobody doubts it: when its slash was dropped, others show theirs. The
agent removes a bundle when nobody needs it any more.

An owner whose work was convicted is told of every change: how much is announced, by which evidence,
and until when the canceller can drop it; its own answer is shown beside that. What an account lost
of its pay, and why, the agent says once and `status` shows: a line that is lost stays lost, so a
sum by reason only ever grows; what is told is the growth.

Invariants: nothing is shown that no seal made slashable; what is named is there; a bundle stays on
disk until a slash took what there was or we have settled, so that a restart shows it again.
Source: docs/protocol.md 5.
"""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Malformed, Misbehaved, NotFound, Refused, TooLarge
from contracts.terms.ids import Address, Digest, JobId
from market.bodies.earnings import EarningView
from market.bodies.routes import (
    GET_CONVICTIONS,
    GET_CONVICTIONS_OF,
    GET_EARNINGS,
    POST_EVIDENCE,
)
from market.bodies.signing import evidence_digest
from market.bodies.slashes import PostEvidence
from tallystick.provider.background import Say
from tallystick.provider.folder import is_settled, load_peer_file
from tallystick.sdk.client import MarketClient
from tallystick.sdk.convictions import ENDED, told_to_owner

# ---------------------------------------------------------------------------------------- evidence

DOUBTED = ("dropped",)
"""States of a slash whose evidence may not hold."""
OVER = ("burned", "nothing")
"""States of a slash after which no other bundle is wanted."""


def bundles_in(folder: Path) -> dict[Digest, Path]:
    """Bundles that audits left in a job's folder, by what they are about."""
    found = {}
    for path in sorted((folder / "evidence").glob("*.bundle")):
        with contextlib.suppress(ValueError):  # nothing that we wrote
            found[Digest(bytes.fromhex(path.stem))] = path
    return found


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
        self._done: set[Path] = set()  # bundles that are shown, or that nobody takes
        self.is_accused = False  # a slash of this account may still be announced or burned

    async def show(self) -> None:
        """Show what others are convicted by, and remove what nobody needs; safe to repeat.

        It lasts as long as bundles need to go up. Raises as `look`.
        """
        for audit in audits_in(self._home):
            if bundles := bundles_in(audit.folder):
                with contextlib.suppress(NotFound):  # a market that was set up anew
                    await self._look_after(audit, bundles)

    async def look(self) -> None:
        """Tell the owner what has become of slashes of its own; safe to repeat.

        Raises:
            Unavailable: the market does not answer now.
            Refused: it answers what no market should.
        """
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

    async def _look_after(self, audit: Audit, bundles: Mapping[Digest, Path]) -> None:
        """Show what counts, unless another's bundle shows it undisputed; remove what is over."""
        session = load_or_create_session(audit.key)
        convictions = (await self._client.whole(GET_CONVICTIONS, job=audit.job)).convictions
        over = {each.subject for each in convictions if each.slash and each.slash.state in OVER}
        wanted = {
            each.subject
            for each in convictions
            if session.peer in each.auditors and (each.slash is None or each.slash.state in DOUBTED)
        }
        for subject, path in bundles.items():
            if subject in over or is_settled(audit.folder):
                path.unlink(missing_ok=True)
            elif subject in wanted and path not in self._done:
                await self._show(audit.job, subject, path, session)

    async def _show(self, job: JobId, subject: Digest, path: Path, session: Session) -> None:
        try:
            bundle = await self._client.put_file(path, by=session)
            shown = PostEvidence(
                subject=subject,
                bundle=bundle,
                session_key=session.key,
                signature=session.private_key.sign(evidence_digest(job, subject, bundle)),
            )
            await self._client.call(POST_EVIDENCE, shown, job=job)
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
        self._done.add(path)

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
