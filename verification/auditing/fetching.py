"""Bytes that others have bound themselves to, by digest, from whoever gives them first.

Sources are asked in turn: a member's own disk, the holders, and last the coordinator, who fetches,
checks and keeps what we lack, and says in a Notice if it finds nothing. Of the holders whose work
is audited comes last: it gains by our waiting.

Invariant: a source hands out only bytes whose digest it has computed, so it does not matter who
served them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from typing_extensions import Buffer

from contracts.terms.errors import Misbehaved, NotFound, TallystickError, Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.work import Sort
from training.worker.sealed import SealedWork

ByteSource: TypeAlias = Callable[[Digest, Sort, Sequence[PeerId]], Awaitable[Buffer]]
"""Gives checked bytes of a digest that a sealed claim, or a leaf of one, names.

It is told what they spell, so how they are digested, and who may have them, in the order in which
they are asked. It raises NotFound: it has not got them; of the coordinator: nobody has.
Unavailable: it is not reached, or they may still come. Misbehaved: it gives others.
"""


async def fetch(
    sources: Sequence[ByteSource], work: SealedWork, doer: PeerId, digest: Digest, sort: Sort
) -> bytes:
    """Bytes of this digest; raises what the last source does.

    Args:
        sources: In the order in which they are asked.
        work: Says who may hold the bytes.
        doer: Whose work is audited.
        digest: That a sealed claim names.
        sort: What the bytes spell.
    """
    holders = sorted(work.holders_of(digest), key=lambda peer: peer == doer)
    error: TallystickError = NotFound("nobody is asked for these bytes", digest=digest.hex())
    for source in sources:
        try:
            return bytes(await source(digest, sort, holders))
        except (NotFound, Unavailable, Misbehaved) as failure:
            error = failure
    raise error
