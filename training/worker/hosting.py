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

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, Sort, WorkClaim
from training.strategies.port import Compute, Strategy
from training.worker.book import OwnClaim
from training.worker.patience import Patience
from training.worker.ports import Arithmetic
from training.worker.work import Work


class MemberHost:
    """Satisfies `verification.auditing.host.Host`."""

    def __init__(self, work: Work, arithmetic: Arithmetic) -> None:
        at = self._at = work.station
        self._work, self._patience = work, Patience()
        self.sources = (self._own, self._from_holders, self._from_coordinator)
        """In the order in which they are asked."""
        self.strategy_for: Callable[[Compute], Strategy] = arithmetic.strategy_for
        """Makes what repeats claims."""
        self.rows: Callable[[str], bytes] = arithmetic.rows
        self.folder, self.session, self.engine = at.folder, at.session, at.engine
        self.behaviour, self.tell, self.changes = at.behaviour, at.tell, at.sealed_changes
        self.work = work.book.work

    # ------------------------------------------------------------------------------- the sources

    async def _own(self, digest: Digest, sort: Sort, _holders: Sequence[PeerId]) -> Buffer:
        return await self._at.read(digest, sort)

    async def _from_holders(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> Buffer:
        """From one of them, in their order; kept here from then on."""
        asked = [peer for peer in holders if peer != self._at.peer]
        data = await self._at.peers.fetch(digest, sort, asked, patience=self._patience)
        await self._keep(digest, data)
        return data

    async def _from_coordinator(
        self, digest: Digest, sort: Sort, _holders: Sequence[PeerId]
    ) -> Buffer:
        """What it gives, which asks all that may have it; kept here from then on."""
        data = await self._at.peers.find(digest, sort)
        await self._keep(digest, data)
        return data

    async def _keep(self, digest: Digest, data: Buffer) -> None:
        put = partial(self._at.store.put, "audited", self._at.applied, digest, data)
        with suppress(Unavailable):  # a full disk stops no audit
            await self._at.engine.run_io(put)

    # ---------------------------------------------------------------------------------- the job

    @property
    def record(self) -> JobRecord:
        """What the seals so far establish."""
        return self._work.book.record

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""
        return self._work.book.history.parties

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
            self._work.book.keep_claim(OwnClaim(report, (leaf,)))
        await self._at.peers.report(report, (leaf,))
