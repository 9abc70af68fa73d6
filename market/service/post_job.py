"""A poster orders work, or asks what it would cost."""

from dataclasses import replace

from contracts.terms.errors import Conflict, Expired
from contracts.terms.history import encode_kept, kept_digest
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.kinds import decode_message
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.parts import Parts
from contracts.terms.signatures import Signed, decode_signed, expect, verify_wallet
from market.bodies.events import PostedEvent
from market.bodies.jobs import Permit, QuoteView
from market.domain.admission import Surroundings, check_job, named_blobs
from market.domain.jobs import JobState
from market.domain.quote import quote
from market.service.candidates import candidates
from market.service.feeds import event_of, tell_job
from market.service.life import tell_of_state
from market.service.named_blobs import name_blobs
from market.service.ports import BlobStore, Chain, UnitOfWork
from market.service.rows import CoordinatorRow, JobRow, MessageRow
from market.service.stored_corpus import check_corpus
from market.service.stored_parts import read_blob, size_in_parts
from verification.distances.thresholds import shipped_calibration


async def post_job(
    encoded: bytes,
    permit: Permit,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
    blobs: BlobStore,
) -> JobRow:
    """Admit a job. Safe to repeat: a job that is known is returned as it is.

    Raises:
        BadSignature: not signed by its poster.
        Expired: the permit is over before the job could be funded.
        Conflict: the escrow would not take the poster's signature yet.
        Refused: see `market.domain.admission.check_job`, `check_corpus` and `name_blobs`.
    """
    signed = expect(decode_signed(encoded), JobSpec)
    spec, margin = signed.message, (await chain.times()).margin
    verify_wallet(signed, spec.poster, chain.domain)
    async with work:
        if known := await work[JobRow].get(spec.job()):
            return known
        check_job(spec, await _surroundings(spec, now, work, blobs))
        if spec.open_by > now // 1000 + margin:
            raise Conflict(
                f"open_by lies more than {margin} s ahead, so the escrow would refuse it",
                would_fit=now // 1000 + margin,
            )
        if permit.deadline * 1000 <= now:
            raise Expired("the permit is over", deadline=permit.deadline, now=now // 1000)
        corpus, is_compared = await check_corpus(spec, blobs)
        wholes = {spec.data.manifest: corpus}
        if (weights := spec.model.weights) != ZERO_DIGEST:
            index = Parts.decoded(await read_blob(weights, Parts.max_bytes, blobs))
            wholes[weights] = list(index.parts)
        row = replace(_row(signed, encoded, permit, now), is_compared=is_compared)
        await work[JobRow].add(row)
        await name_blobs(row.job, named_blobs(spec).values(), wholes, work, blobs)
        await work[MessageRow].add(_first_message(signed))
        tell_job(row.job, _posted(row, spec), work)
        tell_of_state(row, now, work)
    return row


def _posted(row: JobRow, spec: JobSpec) -> PostedEvent:
    audit = spec.rules.audit
    return event_of(
        PostedEvent,
        row,
        at=row.posted_at,
        price_ceiling=spec.price_ceiling,
        stages=spec.batch.stages,
        peers_per_stage=spec.batch.peers_per_stage,
        audit_budget=None if audit is None else audit.budget,
    )


async def quote_job(
    encoded: bytes, *, now: UnixMillis, work: UnitOfWork, blobs: BlobStore
) -> QuoteView:
    """What the unsigned spec in `encoded` would cost and whether it would be matched now.

    Raises:
        Malformed, UnknownVersion: it is no JobSpec.
    """
    spec = expect(Signed(decode_message(encoded), b""), JobSpec).message
    async with work:
        around = await _surroundings(spec, now, work, blobs)
        return quote(spec, await candidates(now, work), around, now)


async def _surroundings(
    spec: JobSpec, now: UnixMillis, work: UnitOfWork, blobs: BlobStore
) -> Surroundings:
    missing = [
        what for what, name in named_blobs(spec).items() if not await _is_here(what, name, blobs)
    ]
    return Surroundings(
        now=UnixSeconds(now // 1000),
        missing_blobs=tuple(missing),
        coordinator_known=await work[CoordinatorRow].get(spec.coordinator) is not None,
        calibration=shipped_calibration(),
        free_bytes=await blobs.free_bytes(),
    )


async def _is_here(what: str, name: Digest, blobs: BlobStore) -> bool:
    """Whether all of it is: weights are an index, and its parts."""
    size = size_in_parts(name, blobs) if what == "weights" else blobs.size(name)
    return await size is not None


def _row(signed: Signed[JobSpec], encoded: bytes, permit: Permit, now: UnixMillis) -> JobRow:
    spec = signed.message
    return JobRow(
        job=spec.job(),
        signed=encoded,
        poster=spec.poster,
        coordinator=spec.coordinator,
        name=spec.name,
        budget=spec.budget,
        deadline=spec.deadline,
        steps=spec.batch.steps,
        state=JobState.DRAFT.value,
        posted_at=now,
        permit=permit.signature,
        permit_deadline=permit.deadline,
        num_messages=1,
    )


def _first_message(signed: Signed[JobSpec]) -> MessageRow:
    item = Signed(signed.message, signed.signature)
    return MessageRow(
        job=signed.message.job(),
        sequence=1,
        digest=kept_digest(item),
        name=None,
        kind=signed.message.kind,
        data=encode_kept(item),
    )
