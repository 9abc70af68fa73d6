"""What a convicted account says of a slash: one blob that is shown beside it and stops nothing."""

from dataclasses import replace

from contracts.terms.errors import BadSignature, Conflict, NotFound
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.bodies.signing import answer_digest
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import SlashRow
from market.service.slash_events import tell_of_slash


async def answer_slash(
    evidence: Digest,
    answer: Digest,
    signature: bytes,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    blobs: BlobStore,
) -> SlashRow:
    """Show a blob beside a slash. Safe to repeat.

    Raises:
        NotFound: no such slash, or the answer is no blob of this market.
        BadSignature: not by the convicted account's wallet.
        Conflict: it was answered with another blob.
    """
    if await blobs.size(answer) is None:
        raise NotFound("no such blob", digest=answer.hex())
    async with work:
        row = await work[SlashRow].lock(evidence)
        if row is None:
            raise NotFound("no such slash", evidence=evidence.hex())
        if recover(answer_digest(evidence, answer), signature) != row.account:
            raise BadSignature(f"not signed by 0x{row.account.hex()}")
        if row.answer == answer:
            return row
        if row.answer is not None:
            raise Conflict("this slash was answered before", answer=row.answer.hex())
        row = replace(row, answer=answer)
        await work[SlashRow].put(row)
        tell_of_slash(row, now, work)
    return row
