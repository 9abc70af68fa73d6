"""What an agent does about slashes: tells its owner of its own, looks after bundles of its audits.

An owner whose work was convicted can contest a slash while it is announced, so it is told of every
change, with the commands. Bundles are shown by the process that audits (`evidence`); those of one
that has ended are shown from here, and removed when nobody needs them any more: a slash has taken
what there was, or the job is refunded.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts.keys.store import load_or_create_session
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address, Digest, JobId
from market.bodies.routes import GET_CONVICTIONS, GET_CONVICTIONS_OF, GET_JOB
from tallystick.provider.evidence import OVER, Evidence, bundles_in
from tallystick.provider.folder import load_peer_file
from tallystick.sdk.client import MarketClient
from tallystick.sdk.convictions import ENDED, told_to_owner

Say = Callable[[str], None]


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
        self.is_accused = False  # a slash of this account may still be announced or contested

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
        is_refunded = (await self._client.call(GET_JOB, job=audit.job)).state == "refunded"
        convictions = (await self._client.whole(GET_CONVICTIONS, job=audit.job)).convictions
        over = {each.subject for each in convictions if each.slash and each.slash.state in OVER}
        for subject, path in bundles_in(audit.folder).items():
            if is_refunded or subject in over:
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
