"""A job as the auditor in a member's process sees it: what seals hold, and where bytes come from.

Invariants: bytes from a member's own disk, from holders and from the coordinator were compared with
their digest; what an audit took stays here as long as our own work of that round, because whoever
served it may be gone before the next auditor asks; an audit computes when it has the turn, with a
strategy of its own, so the round in work is not touched.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session
from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, Sort, WorkClaim
from training.changes import Changes
from training.strategies.port import Compute, Strategy
from training.telling import Tell
from training.worker.engine import Engine
from training.worker.patience import Patience
from training.worker.ports import Arithmetic, Behaviour
from training.worker.sealed import SealedWork
from training.worker.station import Station
from training.worker.work import Work


class OwnDisk:
    """Bytes that are here."""

    def __init__(self, station: Station) -> None:
        self._at = station

    async def get(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> bytes:
        """Checked bytes, whoever else has them; raises NotFound, Unavailable."""
        return await self._at.read(digest, sort)


class Holders:
    """Bytes from the members that may have them, kept here from then on."""

    def __init__(self, station: Station) -> None:
        self._at, self._patience = station, Patience()

    async def get(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> bytes:
        """Checked bytes from one of `holders`, in their order.

        Raises:
            NotFound: none of them has them. Unavailable: one is not reached.
        """
        asked = [peer for peer in holders if peer != self._at.peer]
        data = await self._at.peers.fetch(digest, sort, asked, patience=self._patience)
        await _keep(self._at, digest, data)
        return data


class Coordinator:
    """Bytes from the coordinator, which asks all that may have them; kept here from then on."""

    def __init__(self, station: Station) -> None:
        self._at = station

    async def get(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> bytes:
        """Checked bytes.

        Raises:
            NotFound: nobody has them. Unavailable: it is looking, or not reached.
            Conflict: we are not asked for them (any more).
        """
        data = await self._at.peers.find(digest, sort)
        await _keep(self._at, digest, data)
        return data


async def _keep(station: Station, digest: Digest, data: bytes) -> None:
    put = partial(station.store.put, "audited", station.applied, digest, data)
    with suppress(Unavailable):  # a full disk stops no audit
        await station.engine.run_io(put)


class MemberHost:
    """Satisfies `verification.auditing.host.Host`."""

    def __init__(self, work: Work, arithmetic: Arithmetic) -> None:
        self._work, self._at = work, work.station
        self.sources = (OwnDisk(self._at), Holders(self._at), Coordinator(self._at))
        """In the order in which they are asked."""
        self.strategy_for: Callable[[Compute], Strategy] = arithmetic.strategy_for
        """Makes what repeats claims."""
        self.rows: Callable[[str], bytes] = arithmetic.rows

    @property
    def folder(self) -> Path:
        """Where reports and evidence stay."""
        return self._at.folder

    @property
    def session(self) -> Session:
        """The key that draws name."""
        return self._at.session

    @property
    def record(self) -> JobRecord:
        """What the seals so far establish."""
        return self._work.book.record

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""
        return self._work.book.parties

    @property
    def work(self) -> SealedWork:
        """Claims of sealed rounds."""
        return self._work.book.work

    @property
    def changes(self) -> Changes:
        """Marked with every seal."""
        return self._at.sealed_changes

    @property
    def engine(self) -> Engine:
        """That computes."""
        return self._at.engine

    @property
    def behaviour(self) -> Behaviour:
        """What is said of what was not seen."""
        return self._at.behaviour

    @property
    def tell(self) -> Tell:
        """The log."""
        return self._at.tell

    async def weights(self, claim: WorkClaim) -> Path:
        """Our file of the weights that a claim was computed on; raises Unavailable: it is gone."""
        try:
            return await self._work.keeping.weights_of(claim.base)
        except NotFound as error:  # our own file: nobody else is to blame
            raise Unavailable(error.message) from error

    async def reach_coordinator(self) -> None:
        """A member has a session with it already."""

    async def hand_in(self, report: Signed[WorkClaim], leaf: Leaf) -> None:
        """Bring a report to the coordinator; from now on our claims name it until a seal holds it.

        Raises:
            Conflict: it is not wanted any more. Refused, Misbehaved: it was not taken.
            Unavailable: the coordinator is not reached.
        """
        said = report.message
        if self._work.book.own_report(said.subject, said.attempt) is None:
            self._work.book.keep_report(report, (leaf,))
        await self._at.peers.report(report, (leaf,))
