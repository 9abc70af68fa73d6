"""Which blob holds the weights of a stage: what its members say, for whoever downloads the model.

A claim binds its peer alone. Members of a stage hold equal bytes, so they name the same blob; where
they do not, all claims are shown, and the poster sees how many stand behind each.
"""

from dataclasses import dataclass

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Forbidden, NotFound
from contracts.terms.ids import Digest, JobId, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from market.api.schemas import CheckpointEvent, checkpoint_digest
from market.service.feeds import tell_job
from market.service.histories import Histories
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import CheckpointRow, JobRow
from market.service.session import check_session


@dataclass(frozen=True)
class Claim:
    """What one member says."""

    session_key: SessionKey
    stage: int
    step: int
    blob: Digest
    signature: bytes


@dataclass(frozen=True)
class Claimed:
    """A blob, who says that it holds a stage's weights after a step, and its size if it is here."""

    stage: int
    step: int
    blob: Digest
    peers: tuple[PeerId, ...]
    num_bytes: int | None


async def store_checkpoint(
    job: JobId,
    claim: Claim,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    histories: Histories,
    blobs: BlobStore,
) -> bool:
    """Store a member's newest claim; returns whether the blob is still to be uploaded.

    Safe to repeat; a claim of an older step changes nothing.

    Raises:
        NotFound: no such job. Conflict: it is not opened yet.
        BadSignature: not by that session key.
        Forbidden: the key is no sealed member's, or of another stage.
    """
    signed = checkpoint_digest(job, claim.stage, claim.step, claim.blob)
    check_session(claim.session_key, signed, claim.signature)
    peer = peer_id(claim.session_key)
    async with work:
        row = await work[JobRow].get(job)
        if row is None:
            raise NotFound("no such job", job=job.hex())
        record = (await histories.load(job, row.num_messages, work)).record
        if record is None:
            raise Conflict("the job is not opened yet")
        if record.members.get(peer) != claim.stage:
            raise Forbidden(f"{peer.hex()} is no sealed member of stage {claim.stage}")
        known = await work[CheckpointRow].get(job, peer)
        if known is None or known.step <= claim.step:
            claimed = CheckpointRow(job, peer, claim.stage, claim.step, claim.blob)
            await work[CheckpointRow].put(claimed)
            if claimed != known:
                _tell(claimed, now, work)
    return await blobs.size(claim.blob) is None


def _tell(row: CheckpointRow, now: UnixMillis, work: UnitOfWork) -> None:
    event = CheckpointEvent(
        at=now,
        stage=StageIndex(row.stage),
        step=StepNumber(row.step),
        blob=row.blob,
        peer=row.peer,
    )
    tell_job(row.job, event, work)


async def claimed_checkpoints(job: JobId, work: UnitOfWork, blobs: BlobStore) -> list[Claimed]:
    """All claims of a job, by stage, the newest step first, then by the number of peers.

    A claim of a step that is not sealed is not shown (yet): one member alone could else name a
    newer step than all others.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await work[JobRow].get(job)
        if row is None:
            raise NotFound("no such job", job=job.hex())
        claims = await work[CheckpointRow].where(job=job, order="peer")
    peers: dict[tuple[int, int, Digest], list[PeerId]] = {}
    for claim in claims:
        if claim.step <= row.step:
            peers.setdefault((claim.stage, claim.step, claim.blob), []).append(claim.peer)
    claimed = [
        Claimed(stage, step, blob, tuple(found), await blobs.size(blob))
        for (stage, step, blob), found in peers.items()
    ]
    return sorted(claimed, key=lambda each: (each.stage, -each.step, -len(each.peers), each.blob))
