"""Which host runs which job: rows leased with a time to live, so that a dead host loses them.

A host names the coordinators whose wallets it holds, each by that wallet's signature. Jobs name
their coordinator when they are signed, so a host can claim exactly the jobs that were meant for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contracts.terms.errors import BadSignature, Forbidden
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.bodies.jobs import HeededWish, HostedJob, HostedJobs, HostHeartbeat, JobEndpoint
from market.bodies.signing import hosting_digest
from market.domain.jobs import JobState, Wanted, is_hosted
from market.service.auditors import is_checked, list_of_job
from market.service.coding import spec_of
from market.service.coordinators import num_free
from market.service.life import tell_of_state
from market.service.ports import UnitOfWork
from market.service.rows import AuditorListRow, CoordinatorRow, HostedJobRow, HostRow, JobRow

HOSTING_MILLIS = 15_000
_STANDS_STILL = "stands still: "
_MAY_BE_HOSTED = tuple(
    state.value for state in JobState if any(is_hosted(state, w) for w in Wanted)
)


async def register_host(
    host: str,
    coordinators: Sequence[tuple[Address, bytes]],
    now: UnixMillis,
    work: UnitOfWork,
) -> int:
    """Note a host and its coordinators' signatures; returns how many of them
    are free. Safe to repeat.

    Raises:
        BadSignature: a wallet did not say so.
        Forbidden: a coordinator belongs to another host.
    """
    for address, signature in coordinators:
        if recover(hosting_digest(host, address), signature) != address:
            raise BadSignature(f"0x{address.hex()} did not sign that {host} runs it")
    async with work:
        await work[HostRow].put(HostRow(host, now))
        for address, _ in coordinators:
            known = await work[CoordinatorRow].lock(address)
            if known is None:
                await work[CoordinatorRow].add(CoordinatorRow(address, host))
            elif known.host != host:
                raise Forbidden(f"0x{address.hex()} belongs to another host")
        return num_free(await work[CoordinatorRow].where(host=host, job=None), now)


async def claim_jobs(host: str, now: UnixMillis, work: UnitOfWork) -> HostedJobs:
    """Lease to `host` every job of its coordinators that can be opened and nobody else holds;
    returns all it has.

    Raises:
        Forbidden: the host is not registered.
    """
    async with work:
        await _known_host(host, now, work)
        mine = tuple(row.address for row in await work[CoordinatorRow].where(host=host))
        states, closed = _MAY_BE_HOSTED, JobState.CLOSED.value
        jobs = await work[JobRow].where(coordinator=mine, state=states)
        jobs += await work[JobRow].where(coordinator=mine, state=closed, is_sealed=False)
        ready = [row.job for row in jobs if _is_hosted(row) and await _can_open(row, work)]
        claims = [await _claim(job, host, now, work) for job in ready]
        return await _shown([held for held in claims if held is not None], work)


async def hear_host(
    host: str, beat: HostHeartbeat, now: UnixMillis, work: UnitOfWork
) -> HostedJobs:
    """Note all that a host says of its jobs, and renew them; answers what it still holds.

    Raises:
        Forbidden: the host is not registered.
    """
    async with work:
        await note_heeded(host, beat.heeded, work)
        standing = {each.job: each.why for each in beat.standing}
        await note_standing(host, beat.jobs, standing, now, work)
        return await renew_jobs(host, beat.jobs, beat.endpoints, now, work)


async def renew_jobs(
    host: str,
    jobs: Sequence[JobId],
    endpoints: Sequence[JobEndpoint],
    now: UnixMillis,
    work: UnitOfWork,
) -> HostedJobs:
    """Keep rows for another while and note where coordinators listen; returns what is still held.

    Raises:
        Forbidden: the host is not registered.
    """
    heard = {endpoint.job: endpoint.address for endpoint in endpoints}
    async with work:
        await _known_host(host, now, work)
        kept = []
        for job in sorted(set(jobs)):
            row, held = await work[JobRow].get(job), await work[HostedJobRow].lock(job)
            if row is None or not _is_hosted(row) or held is None or held.host != host:
                continue
            until = UnixMillis(now + HOSTING_MILLIS)
            kept.append(replace(held, until=until, address=heard.get(job, held.address)))
            await work[HostedJobRow].put(kept[-1])
        return await _shown(kept, work)


async def _shown(held: Sequence[HostedJobRow], work: UnitOfWork) -> HostedJobs:
    shown = []
    for each in held:
        row, auditors = await work[JobRow].get(each.job), None
        if row is None:
            continue
        if await work[AuditorListRow].get(row.job):
            auditors = await list_of_job(row.job, work)
        job = HostedJob.of(
            row,
            spec=row.signed,
            until=each.until,
            opening_block=None if auditors is None else auditors[0],
            auditors=None if auditors is None else auditors[1].encoded(),
        )
        shown.append(job)
    return HostedJobs(jobs=tuple(shown))


async def note_heeded(host: str, said: Sequence[HeededWish], work: UnitOfWork) -> None:
    """Note which wishes of posters the coordinators of a host's jobs follow. Safe to repeat."""
    async with work:
        for each in said:
            row = await _hosted_by(host, each.job, work)
            if row is None or row.heeded >= each.wish:
                continue  # nearly always: a busy job's row is held by its messages
            row = await work[JobRow].lock(each.job)
            if row is not None and row.heeded < each.wish <= row.wish:
                await work[JobRow].put(replace(row, heeded=each.wish))


async def note_standing(
    host: str,
    running: Sequence[JobId],
    standing: Mapping[JobId, str],
    now: UnixMillis,
    work: UnitOfWork,
) -> None:
    """Tell who watches a job that it stands still, or no longer does. Safe to repeat."""
    said: dict[JobId, str | None] = dict.fromkeys(running)
    said |= {job: _STANDS_STILL + why for job, why in standing.items()}
    async with work:
        for job, failure in said.items():
            row = await _hosted_by(host, job, work)
            if row is None or not _is_news(row, failure):
                continue
            row = await work[JobRow].lock(job)
            if row is not None and _is_news(row, failure):
                row = replace(row, failure=failure)
                await work[JobRow].put(row)
                tell_of_state(row, now, work)


async def _hosted_by(host: str, job: JobId, work: UnitOfWork) -> JobRow | None:
    held = await work[HostedJobRow].get(job)
    return await work[JobRow].get(job) if held is not None and held.host == host else None


def _is_news(row: JobRow, failure: str | None) -> bool:
    """What else a job may have failed of stays as it is."""
    is_ours = row.failure is None or row.failure.startswith(_STANDS_STILL)
    return is_ours and _is_hosted(row) and row.failure != failure


def _is_hosted(row: JobRow) -> bool:
    may_vest = row.opening is not None and not row.is_sealed
    return is_hosted(JobState(row.state), Wanted(row.wanted), may_vest=may_vest)


async def _claim(job: JobId, host: str, now: UnixMillis, work: UnitOfWork) -> HostedJobRow | None:
    held = await work[HostedJobRow].lock(job)
    until = UnixMillis(now + HOSTING_MILLIS)
    if held is None:  # not `put`: of two who claim it at once, one has it
        return await work[HostedJobRow].add(HostedJobRow(job, host, until))
    if held.host != host and held.until > now:
        return None
    kept = replace(held, until=until) if held.host == host else HostedJobRow(job, host, until)
    await work[HostedJobRow].put(kept)
    return kept


async def _can_open(row: JobRow, work: UnitOfWork) -> bool:
    """Whether all that its opening says is fixed: of a checked job the outside auditors too."""
    if not is_checked(spec_of(row).message):
        return True
    return await work[AuditorListRow].get(row.job) is not None


async def _known_host(host: str, now: UnixMillis, work: UnitOfWork) -> None:
    row = await work[HostRow].lock(host)
    if row is None:
        raise Forbidden(f"host {host!r} is not registered: POST /v1/hosting/register first")
    await work[HostRow].put(replace(row, heard_at=now))
