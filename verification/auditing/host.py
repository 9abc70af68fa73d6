"""What an auditor needs of the process that it runs in: a member's worker, or one from outside.

Bytes that others have bound themselves to come by digest, from whoever gives them first. Sources
are asked in turn: a member's own disk, the holders, and last the coordinator, who fetches, checks
and keeps what we lack, and says in a Notice if it finds nothing. Of the holders whose work is
audited comes last: it gains by our waiting.

Invariant: a source hands out only bytes whose digest it has computed, so it does not matter who
served them.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session
from contracts.terms.errors import Misbehaved, NotFound, TallystickError, Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, Sort, WorkClaim
from training.changes import Changes
from training.strategies.port import Compute, Strategy
from training.telling import Tell
from training.worker.engine import Engine
from training.worker.ports import Behaviour
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


class Host(Protocol):
    """A job as one of its auditors sees it."""

    @property
    def folder(self) -> Path:
        """Where reports and evidence stay."""

    @property
    def session(self) -> Session:
        """The key that draws name."""

    @property
    def record(self) -> JobRecord:
        """What the seals so far establish."""

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""

    @property
    def work(self) -> SealedWork:
        """Claims of sealed rounds."""

    @property
    def changes(self) -> Changes:
        """Marked with every seal."""

    @property
    def sources(self) -> Sequence[ByteSource]:
        """In the order in which they are asked, the coordinator last."""

    @property
    def engine(self) -> Engine:
        """That computes."""

    @property
    def behaviour(self) -> Behaviour:
        """What is said of what was not seen."""

    @property
    def tell(self) -> Tell:
        """The log."""

    def strategy_for(self, compute: Compute) -> Strategy:
        """Makes what repeats claims, which computes by `compute`; may take seconds."""

    def rows(self, name: str) -> bytes:
        """Rows of the corpus by the name that a leaf gives them; called on the engine.

        Raises:
            NotFound, ServiceUnreachable, WrongBytes: the blob that they are in.
        """

    async def weights(self, claim: WorkClaim) -> Path:
        """A file of the weights of a claim's base: our own if it has that root, else downloaded.

        Whose work it is is asked last.

        Raises:
            NotFound: nobody has them any more. Unavailable: nobody is reached who has, or the disk
                is full. Misbehaved: what all who are reached offer is of another state.
        """

    async def reach_coordinator(self) -> None:
        """Have a session with it, and know the members of now; raises Unavailable, Refused."""

    async def hand_in(self, report: Signed[WorkClaim], leaf: Leaf) -> None:
        """Bring a report to the coordinator, with which there is a session.

        Raises:
            Conflict: it is not wanted any more. Refused, Misbehaved: it was not taken.
            Unavailable: the coordinator is not reached.
        """
