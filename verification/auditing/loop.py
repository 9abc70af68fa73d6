"""Beside real work: audit what is drawn for us, one thing at a time, and hand the reports in.

Who is asked follows from the docket of the newest seal, so nothing is remembered here but what the
journal has. What cannot be done now is tried again after a pause: until its deadline it is owed,
after that somebody else's. Data that nobody has any more make the report `missing`. A member audits
on its own weights, with tensors from its disk (`MemberAuditor`).

Invariant: what is wrong with one case keeps nobody from the others: who lies chooses the bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from typing_extensions import Buffer

from contracts.terms.digest import digest
from contracts.terms.errors import InvariantBroken, Misbehaved, NotFound, Refused, Unavailable
from contracts.terms.ids import Digest, PeerId, StageIndex
from contracts.terms.messages import AuditReport, Verdict
from training.averaging.slices import Slice
from training.worker.work import Work
from verification.auditing.job import AuditedJob, Fetcher
from verification.auditing.replays import Replays, Source
from verification.distances.thresholds import SATURATED
from verification.docket import classes_of, docket_of
from verification.draws.cases import Case
from verification.verdicts import PROJECTIONS, limits_of, verdict_of

AGAIN = 0.5  # seconds between two tries

Replaying = Callable[[AuditedJob, Case], Awaitable[AuditReport]]
Pause = Callable[[float], Awaitable[None]]


def seed_of(beacon: Digest, auditor: PeerId) -> bytes:
    """What an auditor's projections are seeded by: known to nobody before the beacon."""
    return digest("projections", beacon + auditor)


def seed_for(case: Case, auditor: PeerId) -> bytes:
    """What `auditor` seeds a replay by.

    A repeat takes the seed of the report that it repeats: only so are their projections comparable.
    """
    if case.kind == "report":
        assert case.seeded_by is not None  # the report was drawn with a beacon
        return seed_of(case.seeded_by, case.doer)
    assert case.beacon is not None  # it was drawn
    return seed_of(case.beacon, auditor)


def compared_with_report(
    source: Source,
    case: Case,
    distances: tuple[tuple[str, int], ...],
    projections: tuple[int, ...],
) -> tuple[tuple[str, int], ...]:
    """Distances of a replay; of a repeat also how far the report's projections lie from ours.

    Raises:
        NotFound: the report is of a step that is settled.
    """
    if case.kind != "report":
        return distances
    stated = source.report(case.subject).projections
    return tuple(sorted((*distances, (PROJECTIONS, apart(stated, projections)))))


def apart(stated: tuple[int, ...], replayed: tuple[int, ...]) -> int:
    """How far projections (1e-6) lie apart, in 1e-9; other numbers of units are no comparison."""
    if len(stated) != len(replayed):
        return SATURATED
    pairs = zip(stated, replayed, strict=True)
    return min(SATURATED, 1000 * max((abs(one - other) for one, other in pairs), default=0))


class Auditing:
    """The loop of one auditor, with a way to audit one case."""

    def __init__(self, report_on: Replaying, pause: Pause = asyncio.sleep) -> None:
        self._report_on, self._pause = report_on, pause

    async def run(self, audited: AuditedJob) -> None:
        """Audit for ever; cancelled when we are not needed any more."""
        while True:
            version = audited.version
            open_cases = [
                case
                for case in docket_of(audited.record).owed_by(audited.peer)
                if not await self._is_done(audited, case)
            ]
            if open_cases:
                await self._pause(AGAIN)
            else:
                await audited.beyond(version)

    async def _is_done(self, audited: AuditedJob, case: Case) -> bool:
        """Whether our report was taken, or is wanted no more."""
        try:
            report = audited.reported(case.subject, case.attempt)
            taken = await audited.hand_in(report or await self._audit(audited, case))
        except (Unavailable, Refused, Misbehaved) as error:
            audited.tell("audit_waits", step=case.step, code=error.code, reason=error.message)
            return False
        except InvariantBroken:
            raise
        except Exception as error:  # a bug that somebody's bytes have found
            code = type(error).__name__
            audited.tell("audit_waits", step=case.step, code=code, reason=str(error))
            return False
        audited.tell("audit_handed_in", step=case.step, subject=case.subject, taken=taken)
        return True

    async def _audit(self, audited: AuditedJob, case: Case) -> AuditReport:
        report = await audited.say(
            agreeing_report(audited, case), lambda: self._look_at(audited, case)
        )
        told = {"step": case.step, "stage": case.stage, "kind": case.kind, "peer": case.doer}
        audited.tell("audited", **told, round=case.round, verdict=report.verdict)
        return report

    async def _look_at(self, audited: AuditedJob, case: Case) -> AuditReport:
        try:
            return await self._report_on(audited, case)
        except NotFound as error:
            audited.tell("audit_data_missing", step=case.step, reason=error.message)
            return make_report(audited, case, "missing")


def agreeing_report(audited: AuditedJob, case: Case) -> AuditReport:
    """What somebody says who found no difference, or did not look."""
    if case.is_of_sum:
        return make_report(audited, case, "match")
    limits = _limits(audited, case)
    verdict: Verdict = "match" if case.said in (None, "match") else "mismatch"
    nothing = tuple(sorted((name, 0) for name in limits))
    return make_report(audited, case, verdict, nothing, (0,))


def _limits(audited: AuditedJob, case: Case) -> dict[str, int]:
    """See `limits_of`: between our device and those of who did the work."""
    record = audited.record
    return limits_of(docket_of(record).rules, case, audited.peer, classes_of(record))


def make_report(
    audited: AuditedJob,
    case: Case,
    verdict: Verdict,
    distances: tuple[tuple[str, int], ...] = (),
    projections: tuple[int, ...] = (),
) -> AuditReport:
    """What we say of a case, as its auditor."""
    return AuditReport(
        job=audited.record.job,
        step=case.step,
        stage=case.stage,
        auditor=audited.peer,
        subject=case.subject,
        attempt=case.attempt,
        distances=distances,
        projections=projections,
        verdict=verdict,
    )


async def report_on_sum(audited: AuditedJob, case: Case) -> AuditReport:
    """Sum again, compare bytes (docs/protocol.md 5); raises as `AuditedJob.sums_to`.

    A mean of parts that cannot be added up is not what they come to.
    """
    is_same = await audited.sums_to(case.work) == audited.bound_mean(case.work)
    return make_report(audited, case, verdict_on_sum(case, is_same=is_same))


def verdict_on_sum(case: Case, *, is_same: bool) -> Verdict:
    """What follows from whether the parts come to the bytes that were bound.

    Who repeats a report agrees with it if the sum is what it said.
    """
    found: Verdict = "match" if is_same else "mismatch"
    return "match" if found == (case.said or "match") else "mismatch"


def verdict_on(audited: AuditedJob, case: Case, distances: tuple[tuple[str, int], ...]) -> Verdict:
    """What follows from these distances between our device and those of who did the work.

    Raises:
        Refused: the calibration table does not hold the two classes.
    """
    return verdict_of(case, distances, _limits(audited, case))


# ---------------------------------------------------------------------------------------- a member


class MemberAuditor:
    """Satisfies `training.worker.checking.Auditor`."""

    def __init__(self, auditing: Auditing) -> None:
        self._auditing = auditing

    async def run(self, work: Work) -> None:
        """See `Auditor.run`."""
        await self._auditing.run(MemberJob(work))


class MemberJob(AuditedJob):
    """A job as a member's auditor sees it: the member is drawn in its own stage only."""

    def __init__(self, work: Work) -> None:
        at = work.station
        super().__init__(
            work.book,
            at.folder,
            at.peers,
            at.session,
            fetcher=Fetcher(at.engine, at.peers, work.averages.claimed_part, lambda: at.on_disk),
            changes=at.sealed_changes,
            behaviour=work.behaviour,
            tell=at.tell,
        )
        self._station = at
        self._replays = Replays(
            at.engine,
            lambda: at.compute.replayer(),  # of the stage that we have by then
            lambda step, _root: work.keeping.weights_before(step),
            at.tell,
        )

    def replays_in(self, stage: StageIndex) -> Replays:
        """See `Source.replays_in`."""
        assert stage == self._station.stage  # by `docket`
        return self._replays

    async def _mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]
    ) -> Slice:
        at = self._station
        return await at.engine.run(partial(at.compute.mean, parts, weights, totals))

    async def _reach_coordinator(self) -> None:
        """A member has a session with it already."""
