"""A member's side of audits: what an auditor finds here, and how its report leaves.

Satisfies structurally what `verification.auditing` asks for. Invariants: a report is on disk before
it is sent, and one draw gets one report, restarts included.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from contracts.governance.record import JobRecord
from contracts.terms.errors import Conflict, Misbehaved, Refused, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit, Message
from contracts.terms.signatures import Signed
from training.worker.sealed import SealedCommit
from training.worker.work import Work
from verification.auditing.replays import Replays


class Audited:
    """One lease's work, as an auditor sees it."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @property
    def record(self) -> JobRecord:
        """What the seals that we have applied establish."""
        return self._work.book.record

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self._work.station.peer

    @property
    def folder(self) -> Path:
        """Where evidence stays."""
        return self._work.station.folder

    @property
    def version(self) -> int:
        """Rises with every seal."""
        return self._work.station.sealed_changes.version

    async def beyond(self, version: int) -> None:
        """Wait for a seal after that version."""
        await self._work.station.sealed_changes.beyond(version)

    def tell(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self._work.station.tell(event, **fields)

    # --------------------------------------------------------------------------------- evidence

    def replays_in(self, stage: StageIndex) -> Replays:
        """Of our stage: a member is drawn in no other."""
        assert stage == self._work.station.stage  # by `docket`
        return self._work.replays

    def commit(self, name: Digest) -> SealedCommit:
        """A sealed GradCommit with its leaves; raises NotFound."""
        return self._work.book.work.commit(name)

    def state_of(self, commit: GradCommit) -> Digest:
        """Root of the state in which it is judged, by what seals say of its stage.

        Raises:
            Unavailable: members differ, and no AverageSet has followed that says who was right.
        """
        if (root := self._work.book.work.state_of(commit, self.record.pay_leases())) is None:
            raise Unavailable("what state the stage had in that step is not sealed yet")
        return root

    def report(self, name: Digest) -> AuditReport:
        """A sealed report; raises NotFound."""
        return self._work.book.work.report(name)

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""
        return self._work.book.history.parties

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """See `SealedWork.said`."""
        return self._work.book.work.said()

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: UnitId, digest: Digest
    ) -> bytes:
        """A boundary tensor as it is digested, from who sent or received it; errors as `Claims`.

        `stages`: the one below it and the one above.
        """
        holders = self._work.book.work.doers(step, stages, unit)
        return (await self._work.claims.tensor(step, digest, holders)).formed

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of a part of a gradient; raises as `tensor`."""
        return await self._work.claims.part(commit, chunk)

    async def sums_to(self, name: Digest) -> Digest | None:
        """Digest of the mean that a sealed AveragedChunk should have; raises as `tensor`.

        None: its parts, which are bound, cannot be added up.
        """
        sealed = self._work.book.work.mean(name)
        chunk = (StageIndex(sealed.chunk.stage), ChunkIndex(sealed.chunk.chunk))
        commits = {commit.digest(): commit for commit in sealed.commits}
        mean = await self._work.averages.sum_again(sealed.average, commits, chunk, self.part)
        return mean.digest if mean else None

    def bound_mean(self, name: Digest) -> Digest:
        """Digest of the mean that it is bound to; raises NotFound."""
        return self._work.book.work.mean(name).chunk.chunk_digest

    # ---------------------------------------------------------------------------------- reports

    async def say(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `Behaviour.report`."""
        work, claims = self._work.book.work, self._work.claims
        claims.patience.doer = work.doer_of(agreeing.subject)
        sealed = work.find_work(agreeing.subject)

        async def fetched_and_replayed() -> AuditReport:
            if sealed is not None:
                await claims.ahead(sealed.commit, work.boundary_of(sealed))
            return await replay()

        return await self._work.behaviour.report(agreeing, fetched_and_replayed)

    def sign(self, report: AuditReport) -> Signed[AuditReport]:
        """A report of ours, signed; the same every time."""
        return self._work.station.session.sign(report)

    def reported(self, subject: Digest, attempt: int) -> AuditReport | None:
        """What we have said in this draw."""
        signed = self._work.book.own_report(subject, attempt)
        return signed.message if signed else None

    async def hand_in(self, report: AuditReport) -> bool:
        """Bind ourselves to a report, and bring it to the coordinator; whether it took it.

        Raises:
            Unavailable: the coordinator is not reached, or the disk cannot be written.
        """
        book = self._work.book
        signed = book.own_report(report.subject, report.attempt)
        if signed is None:
            signed = self.sign(report)
            book.keep_report(signed)
        try:
            await self._work.station.peers.report(signed)
        except Conflict:
            return False  # it is not wanted any more
        except (Refused, Misbehaved) as error:
            raise Unavailable(f"the report was not taken: {error.message}") from error
        return True
