"""Which blobs hold the weights of a stage: what its members say, for whoever downloads the model.

A claim names an index of parts (`contracts.terms.parts`) and binds its peer alone. Members of a
stage hold equal bytes, so they name the same index; where they do not, all claims are shown, and
the poster sees how many stand behind each. Weights are here when the index and all of its parts
are: a member that uploads the index alone keeps no other from uploading the rest.
Peers of one owner stand for one: of those that name the same index the first is shown.
"""

from collections.abc import Iterable

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Forbidden, NotFound
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from contracts.terms.parts import Parts
from market.bodies.events import CheckpointEvent, UnpublishedEvent
from market.bodies.jobs import CheckpointsView, CheckpointView, PostCheckpoint, UnpublishedView
from market.bodies.signing import checkpoint_digest
from market.service.feeds import event_of, tell_job
from market.service.find_job import find_job
from market.service.histories import Histories
from market.service.named_blobs import need_blobs
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import CheckpointRow, LeaseRow
from market.service.session import check_session
from market.service.stored_parts import size_in_parts, stored_whole


async def store_checkpoint(
    job: JobId,
    claim: PostCheckpoint,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    histories: Histories,
    blobs: BlobStore,
) -> bool:
    """Store a member's newest claim; returns whether any of the weights is still to be uploaded.

    Safe to repeat; a claim of an older step changes nothing, and the first failure of a step stays
    until the weights are here.

    Raises:
        NotFound: no such job. Conflict: it is not opened yet.
        BadSignature: not by that session key.
        Forbidden: the key is no sealed member's, or of another stage.
    """
    signed = checkpoint_digest(job, claim.stage, claim.step, claim.blob, claim.failure)
    check_session(claim.session_key, signed, claim.signature)
    peer = peer_id(claim.session_key)
    async with work:
        await _check_member(job, peer, claim.stage, work, histories)
        # Of members alone: an index is looked for part by part.
        whole = await stored_whole(claim.blob, blobs)
        is_here = whole is not None and await _list(claim.blob, whole, work, blobs)
        known = await work[CheckpointRow].get(job, peer)
        if known is None or known.step <= claim.step:
            claimed = _claimed(job, peer, claim, known, is_here=is_here)
            await work[CheckpointRow].put(claimed)
            if claimed != known:
                _tell(claimed, now, work)
    return not is_here


async def _check_member(
    job: JobId, peer: PeerId, stage: int, work: UnitOfWork, histories: Histories
) -> None:
    row = await find_job(job, work)
    record = (await histories.load(job, row.num_messages, work)).record
    if record is None:
        raise Conflict("the job is not opened yet")
    if record.members.get(peer) != stage:
        raise Forbidden(f"{peer.hex()} is no sealed member of stage {stage}")


async def _list(name: Digest, whole: Parts, work: UnitOfWork, blobs: BlobStore) -> bool:
    """Note the parts that a claim names by their index; whether all is here still."""
    try:
        await need_blobs((name,), work, blobs, wholes={name: whole.parts})
    except NotFound:
        return False
    return True


def _claimed(
    job: JobId, peer: PeerId, claim: PostCheckpoint, known: CheckpointRow | None, *, is_here: bool
) -> CheckpointRow:
    is_same = known is not None and (known.step, known.blob) == (claim.step, claim.blob)
    before = known.failure if known is not None and is_same else ""
    failure = "" if is_here else before or claim.failure
    return CheckpointRow(job, peer, claim.stage, claim.step, claim.blob, is_here, failure)


def _tell(row: CheckpointRow, now: UnixMillis, work: UnitOfWork) -> None:
    if row.failure:
        tell_job(row.job, event_of(UnpublishedEvent, row, at=now, reason=row.failure), work)
    else:
        tell_job(row.job, event_of(CheckpointEvent, row, at=now), work)


async def claimed_checkpoints(job: JobId, work: UnitOfWork, blobs: BlobStore) -> CheckpointsView:
    """All claims of a job, by stage, the newest step first, then by the number of owners.

    A claim of a step that is not sealed is not shown (yet): one member alone could else name a
    newer step than all others.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await find_job(job, work)
        claims = await work[CheckpointRow].where(job=job, order="peer")
        leases = await work[LeaseRow].where(job=job)
    claims = [claim for claim in claims if claim.step <= row.step]
    owner_of = {peer_id(each.session_key): each.account for each in leases if each.session_key}
    peers: dict[tuple[StageIndex, StepNumber, Digest], dict[Address, PeerId]] = {}
    for claim in claims:
        if claim.blob != ZERO_DIGEST:
            place = (StageIndex(claim.stage), StepNumber(claim.step), claim.blob)
            named = peers.setdefault(place, {})
            named.setdefault(owner_of[claim.peer], claim.peer)
    claimed = [
        CheckpointView(
            stage=stage,
            step=step,
            blob=blob,
            peers=tuple(found.values()),
            num_bytes=await size_in_parts(blob, blobs),
        )
        for (stage, step, blob), found in peers.items()
    ]
    claimed.sort(key=lambda each: (each.stage, -each.step, -len(each.peers), each.blob))
    here = {(each.stage, each.step) for each in claimed if each.num_bytes is not None}
    failed = [each for each in failures(claims) if (each.stage, each.step) not in here]
    return CheckpointsView(
        checkpoints=tuple(claimed), unpublished=tuple(map(unpublished_view, failed))
    )


def failures(claims: Iterable[CheckpointRow]) -> list[CheckpointRow]:
    """Those that tell of a failure, of weights that no member has seen here whole."""
    known = list(claims)
    here = {(each.stage, each.step) for each in known if each.is_here}
    return [each for each in known if each.failure and (each.stage, each.step) not in here]


def unpublished_view(failed: CheckpointRow) -> UnpublishedView:
    """What a member could not upload, and why."""
    return UnpublishedView.of(failed, reason=failed.failure)
