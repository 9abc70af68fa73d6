"""Convictions and slashes as everybody sees them, by job, by account, or by evidence."""

from contracts.terms.ids import Address, Digest, JobId
from market.bodies.slashes import ConvictionsView, ConvictionView, SlashesView, SlashView
from market.service.coding import items
from market.service.find_job import find_job, need
from market.service.listing import FIRST, Asked, Listing
from market.service.ports import UnitOfWork
from market.service.rows import ConvictionRow, SlashRow

CONVICTIONS = Listing(ConvictionRow, "step")
SLASHES = Listing(SlashRow, "convicted_at")


async def find_convictions(
    work: UnitOfWork,
    asked: Asked = FIRST,
    *,
    job: JobId | None = None,
    account: Address | None = None,
) -> ConvictionsView:
    """Convictions with their slashes, of one job or of one account.

    Raises:
        NotFound: no such job.
    """
    async with work:
        if job is None:
            part = await CONVICTIONS.part(asked, work, account=account)
        else:
            await find_job(job, work)
            part = await CONVICTIONS.part(asked, work, job=job)
        named = tuple(row.evidence for row in part.rows if row.evidence is not None)
        slashes = await work[SlashRow].where(evidence=named)
    views = {slash.evidence: SlashView.of(slash) for slash in slashes}
    convictions = (
        ConvictionView.of(
            row,
            auditors=tuple(items(row.auditors)),
            slash=None if row.evidence is None else views[row.evidence],
        )
        for row in part.rows
    )
    return ConvictionsView(convictions=tuple(convictions), next=part.next)


async def slashes_of_job(job: JobId, work: UnitOfWork, asked: Asked) -> SlashesView:
    """Slashes of a job, in the order of convictions.

    Raises:
        NotFound: no such job.
    """
    async with work:
        await find_job(job, work)
        part = await SLASHES.part(asked, work, job=job)
    return SlashesView(slashes=tuple(map(SlashView.of, part.rows)), next=part.next)


async def slash_of(evidence: Digest, work: UnitOfWork) -> SlashView:
    """A slash by its evidence.

    Raises:
        NotFound: there is none.
    """
    async with work:
        return SlashView.of(need(await work[SlashRow].get(evidence), "slash", evidence=evidence))
