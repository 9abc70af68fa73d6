"""Which blobs hold the weights of a stage: what its members say, for whoever downloads the model.

A claim names an index of parts (`contracts.terms.parts`) and binds its peer alone. Members of a
stage hold equal bytes, so they name the same index; where they do not, all claims are shown, and
the poster sees how many stand behind each. Weights are here when the index and all of its parts
are: a member that uploads the index alone keeps no other from uploading the rest.
Peers of one owner stand for one: of those that name the same index the first is shown.

A peer speaks of the steps that its job publishes while it goes on, which are few, and of one that
may be the last: what it says of another one takes the place of that.
"""

from collections.abc import Sequence, Set

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Forbidden, NotFound
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from contracts.terms.parts import Parts
from market.bodies.events import CheckpointEvent, UnpublishedEvent
from market.bodies.jobs import CheckpointsView, CheckpointView, PostCheckpoint, UnpublishedView
from market.bodies.signing import checkpoint_digest
from market.service.coding import spec_of
from market.service.feeds import event_of, tell_job
from market.service.find_job import find_job
from market.service.histories import Histories
from market.service.named_blobs import need_blobs
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import CheckpointRow, JobRow, LeaseRow
from market.service.session import check_session
from market.service.stored_parts import stored_whole


async def store_checkpoint(
    job: JobId,
    claim: PostCheckpoint,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    histories: Histories,
    blobs: BlobStore,
) -> bool:
    """Store a member's claim; returns whether any of the weights is still to be uploaded.

    Safe to repeat; the first failure of a step stays until the weights are here.

    Raises:
        NotFound: no such job. Conflict: it is not opened yet, or does not publish this step.
        BadSignature: not by that session key.
        Forbidden: the key is no sealed member's, or of another stage.
    """
    signed = checkpoint_digest(job, claim.stage, claim.step, claim.blob, claim.failure)
    check_session(claim.session_key, signed, claim.signature)
    peer = peer_id(claim.session_key)
    async with work:
        row = await _check_member(job, peer, claim.stage, work, histories)
        is_midway = spec_of(row).message.batch.publishes(claim.step)
        if not is_midway and claim.step < row.step:
            raise Conflict(
                f"step {claim.step} is not one that this job publishes, nor its last", step=row.step
            )
        # Of members alone: an index is looked for part by part.
        whole = await stored_whole(claim.blob, blobs)
        is_here = whole is not None and await _list(claim.blob, whole, work, blobs)
        num_bytes = whole.num_bytes if whole is not None and is_here else None
        known = await work[CheckpointRow].get(job, peer, claim.step)
        claimed = _claimed(job, peer, claim, known, num_bytes)
        await work[CheckpointRow].put(claimed)
        if not is_midway:
            await _forget_others(row, claimed, work)
        if claimed != known:
            _tell(claimed, now, work)
    return num_bytes is None


async def _forget_others(row: JobRow, claimed: CheckpointRow, work: UnitOfWork) -> None:
    """Of steps that may be the last a peer has one row."""
    publishes = spec_of(row).message.batch.publishes
    for each in await work[CheckpointRow].where(job=claimed.job, peer=claimed.peer):
        if each.step != claimed.step and not publishes(each.step):
            await work[CheckpointRow].remove(each.job, each.peer, each.step)


async def _check_member(
    job: JobId, peer: PeerId, stage: int, work: UnitOfWork, histories: Histories
) -> JobRow:
    row = await find_job(job, work)
    record = (await histories.load(job, row.num_messages, work)).record
    if record is None:
        raise Conflict("the job is not opened yet")
    if record.members.get(peer) != stage:
        raise Forbidden(f"{peer.hex()} is no sealed member of stage {stage}")
    return row


async def _list(name: Digest, whole: Parts, work: UnitOfWork, blobs: BlobStore) -> bool:
    """Note the parts that a claim names by their index; whether all is here still."""
    try:
        await need_blobs((name,), work, blobs, wholes={name: whole.parts})
    except NotFound:
        return False
    return True


def _claimed(
    job: JobId,
    peer: PeerId,
    claim: PostCheckpoint,
    known: CheckpointRow | None,
    num_bytes: int | None,
) -> CheckpointRow:
    before = known.failure if known is not None and known.blob == claim.blob else ""
    failure = before or claim.failure if num_bytes is None else ""
    return CheckpointRow(job, peer, claim.stage, claim.step, claim.blob, num_bytes, failure)


def _tell(row: CheckpointRow, now: UnixMillis, work: UnitOfWork) -> None:
    if row.failure:
        tell_job(row.job, event_of(UnpublishedEvent, row, at=now, reason=row.failure), work)
    else:
        tell_job(row.job, event_of(CheckpointEvent, row, at=now), work)


async def claimed_checkpoints(job: JobId, work: UnitOfWork) -> CheckpointsView:
    """All claims of a job, by stage, the newest step first, then by the number of owners.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await find_job(job, work)
        claims = await counted_claims(row, work)
        leases = await work[LeaseRow].where(job=job)
    owner_of = {peer_id(each.session_key): each.account for each in leases if each.session_key}
    peers: dict[tuple[StageIndex, StepNumber, Digest], dict[Address, PeerId]] = {}
    for claim in claims:
        if claim.blob != ZERO_DIGEST:
            place = (StageIndex(claim.stage), StepNumber(claim.step), claim.blob)
            named = peers.setdefault(place, {})
            named.setdefault(owner_of[claim.peer], claim.peer)
    # As members say last, who look again when it was uploaded: many ask, and parts are many.
    sizes = {claim.blob: claim.num_bytes for claim in claims if claim.is_here}
    claimed = [
        CheckpointView(
            stage=stage,
            step=step,
            blob=blob,
            peers=tuple(found.values()),
            num_bytes=sizes.get(blob),
        )
        for (stage, step, blob), found in peers.items()
    ]
    claimed.sort(key=lambda each: (each.stage, -each.step, -len(each.peers), each.blob))
    here = {(each.stage, each.step) for each in claimed if each.num_bytes is not None}
    failed = _not_made_up(failures(claims), here)
    return CheckpointsView(
        checkpoints=tuple(claimed), unpublished=tuple(map(unpublished_view, failed))
    )


async def counted_claims(row: JobRow, work: UnitOfWork) -> list[CheckpointRow]:
    """What members say of a job's weights, as far as it counts. The caller is in a transaction.

    A claim of a step that is not sealed does not (yet): one member alone could else name a newer
    step than all others. Nor does one that is neither the newest nor published on the way.
    """
    publishes = spec_of(row).message.batch.publishes
    claims = await work[CheckpointRow].where(job=row.job, order="peer")
    return [
        claim
        for claim in claims
        if claim.step == row.step or (claim.step < row.step and publishes(claim.step))
    ]


def failures(claims: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """Those that tell of a failure, where no member has seen these weights or newer ones here."""
    failed = [each for each in claims if each.failure]
    return _not_made_up(failed, {(each.stage, each.step) for each in claims if each.is_here})


def _not_made_up(
    failed: Sequence[CheckpointRow], here: Set[tuple[int, int]]
) -> list[CheckpointRow]:
    return [
        each
        for each in failed
        if not any(stage == each.stage and step >= each.step for stage, step in here)
    ]


def unpublished_view(failed: CheckpointRow) -> UnpublishedView:
    """What a member could not upload, and why."""
    return UnpublishedView.of(failed, reason=failed.failure)
