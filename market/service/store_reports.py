"""What a coordinator says of its steps, for people: shown, never paid or audited."""

from collections.abc import Sequence

from contracts.terms.errors import Conflict
from contracts.terms.ids import JobId
from contracts.terms.messages import JobOpening
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect
from market.bodies.base import Stored
from market.bodies.events import ReportedEvent
from market.bodies.jobs import StepReport
from market.bodies.signing import reports_digest
from market.service.feeds import tell_job
from market.service.find_job import find_job
from market.service.ports import UnitOfWork
from market.service.rows import ReportRow
from market.service.session import check_session


async def store_reports(
    job: JobId, reports: Sequence[StepReport], signature: bytes, work: UnitOfWork
) -> Stored:
    """Store the newest report of each step; returns how many steps are new.

    Safe to repeat, also for who overheard it: an earlier report of a step changes nothing.

    Raises:
        NotFound: no such job.
        Conflict: it is not opened yet.
        BadSignature: not by the coordinator's session key.
    """
    async with work:
        row = await find_job(job, work)
        if row.opening is None:
            raise Conflict("the job is not opened yet")
        opening = expect(decode_signed(row.opening), JobOpening).message
        check_session(opening.session_key, reports_digest(job, reports), signature)
        steps = tuple(report.step for report in reports)
        known = {each.step: each for each in await work[ReportRow].where(job=job, step=steps)}
        for each in reports:
            row_of_step = ReportRow(job, **each.model_dump())
            stored = known.get(each.step)
            if stored is not None and _order(row_of_step) <= _order(stored):
                continue
            await work[ReportRow].put(row_of_step)
            tell_job(job, ReportedEvent(**each.model_dump()), work)
    stored_now = len(set(steps) - set(known))
    return Stored(stored=stored_now, known=len(reports) - stored_now)


def _order(row: ReportRow) -> tuple[UnixMillis, bool]:
    """Of two reports of a step the later one counts; validation is told when it is known."""
    return row.at, row.validation_millionths is not None
