"""What is shown of jobs: where each is, what became of its money, and how its steps went."""

from collections.abc import Iterable, Sequence

from contracts.terms.encoding import encode
from contracts.terms.ids import Digest, JobId
from market.bodies.events import ReportsView
from market.bodies.jobs import (
    JobOutcome,
    JobSummary,
    JobsView,
    JobView,
    ProgressView,
    StepReport,
)
from market.bodies.offers import AuditorsView, AuditorView
from market.domain.jobs import JobState, Wanted, outcome
from market.domain.quote import WhyNot
from market.service.account_pay import claimed_in
from market.service.auditors import list_of_job
from market.service.coding import WHY_NOT, spec_of
from market.service.find_job import find_job
from market.service.listing import Asked, Listing
from market.service.ports import UnitOfWork
from market.service.rows import (
    ChainEventRow,
    HostedJobRow,
    JobRow,
    LeaseRow,
    MessageRow,
    ReportRow,
)
from market.service.show_money import money_totals
from market.service.show_offers import lease_views
from market.service.store_checkpoints import counted_claims, failures, unpublished_view

JOBS = Listing(JobRow, "-posted_at")
_NAMED = {"Opened": "opened", "Closed": "closed"}
"""Events of a job whose transactions a job view names."""
_MATCHED = (JobState.MATCHED, JobState.RUNNING, JobState.FINISHED)
"""States in which nobody asks any more why a job was not matched once."""


def job_outcome(row: JobRow) -> JobOutcome:
    """What became of a job, by the names of the API."""
    return outcome(JobState(row.state), Wanted(row.wanted), trained=row.trained, steps=row.steps)


async def list_jobs(asked: Asked, work: UnitOfWork) -> JobsView:
    """A part of all jobs, newest first.

    Raises:
        Malformed: the cursor is none of this list.
    """
    async with work:
        part = await JOBS.part(asked, work)
        return JobsView(jobs=await job_summaries(part.rows, work), next=part.next)


async def job_summaries(rows: Iterable[JobRow], work: UnitOfWork) -> tuple[JobSummary, ...]:
    """Jobs in a list. The caller is inside a transaction."""
    found = list(rows)
    claimed = await claimed_in([row.job for row in found], work)
    return tuple(
        JobSummary.of(row, outcome=job_outcome(row), claimed=claimed[row.job]) for row in found
    )


async def show_job(job: JobId, work: UnitOfWork) -> JobView:
    """A job with all that its members and its poster ask for.

    Raises:
        NotFound: no such job.
    """
    async with work:
        return await job_view(await find_job(job, work), work)


async def job_view(row: JobRow, work: UnitOfWork) -> JobView:
    """A job with everything. The caller is inside a transaction."""
    hosted = await work[HostedJobRow].get(row.job)
    reports = await work[ReportRow].where(job=row.job, order="step")
    claims = await counted_claims(row, work)
    why = WhyNot() if row.state in _MATCHED else WHY_NOT.validate_json(row.not_matched)
    return JobView.of(
        row,
        outcome=job_outcome(row),
        spec=spec_of(row).message.model_dump(mode="json"),
        coordinator_address=hosted.address if hosted else None,
        leases=await lease_views(await work[LeaseRow].where(job=row.job), work),
        progress=progress_view(row, reports),
        reports=tuple(map(StepReport.of, reports)),
        **await money_totals(row, work),
        not_matched=why.exclusions,
        advice=why.advice,
        transactions=await _transactions(row.job, work),
        unpublished=tuple(map(unpublished_view, failures(claims))),
    )


def progress_view(row: JobRow, reports: Sequence[ReportRow]) -> ProgressView:
    """How far a job is, by its newest reports."""
    newest = reports[-1] if reports else None
    return ProgressView(
        step=row.step,
        trained=row.trained,
        steps=row.steps,
        loss_millionths=newest.loss_millionths if newest else None,
        tokens_per_second=newest.tokens_per_second if newest else None,
    )


async def _transactions(job: JobId, work: UnitOfWork) -> dict[str, Digest]:
    events = await work[ChainEventRow].where(job=job, event=tuple(_NAMED))
    return {_NAMED[event.event]: event.transaction for event in events}


async def show_reports(job: JobId, work: UnitOfWork, *, after: int, limit: int) -> ReportsView:
    """How the steps of a job beyond `after` went, at most `limit`.

    Raises:
        NotFound: no such job.
    """
    async with work:
        await find_job(job, work)
        rows = await work[ReportRow].where(job=job, order="step", after=after, limit=limit)
    return ReportsView(reports=tuple(map(StepReport.of, rows)))


async def show_auditors(job: JobId, work: UnitOfWork) -> AuditorsView:
    """The outside auditors of a job.

    Raises:
        NotFound: no such job, or its list is not fixed (yet).
    """
    async with work:
        block, listed = await list_of_job(job, work)
    return AuditorsView(
        block=block,
        digest=listed.digest(),
        encoded=listed.encoded(),
        auditors=tuple(map(AuditorView.of, listed.auditors)),
    )


async def encoded_messages(job: JobId, work: UnitOfWork, *, after: int, limit: int) -> bytes:
    """Kept items beyond sequence `after`, at most `limit`: canonical msgpack of [sequence, bytes].

    Raises:
        NotFound: no such job.
    """
    async with work:
        await find_job(job, work)
        rows = await work[MessageRow].where(job=job, order="sequence", after=after, limit=limit)
    return encode([[row.sequence, row.data] for row in rows])
