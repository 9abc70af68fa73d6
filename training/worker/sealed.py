"""Work of sealed rounds, by the names under which it is audited.

What is kept here is what seals cover; it stays for as long as a draw may still ask for it. Who has
some bytes follows from their digest: who made or took a tensor of that digest names it in a leaf,
who sent a part names it in a claim, and the part's reducer took it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contracts.governance.job import JobHistory
from contracts.terms.chunks import Chunking
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, RoundClosed, Sort, WorkClaim


@dataclass(frozen=True)
class SealedClaim:
    """A claim that a seal covers."""

    claim: WorkClaim
    leaves: tuple[Leaf, ...] = ()  # of work and reports
    closed: RoundClosed | None = None
    """What merges it, or what it is a mean of; None of a report."""
    merged: tuple[WorkClaim, ...] = ()  # all that `closed` names, in its order


class SealedWork:
    """Of the rounds since the oldest that a draw may ask for."""

    def note(self, under: JobHistory, names: frozenset[Digest]) -> None:
        """Take in what the seal covers that comes next.

        Args:
            under: The history before that seal.
            names: What it covers: `SealedStep.names`.
        """
        raise NotImplementedError

    def forget_before(self, step: StepNumber) -> None:
        """Nobody asks for anything of an earlier round any more."""
        raise NotImplementedError

    def claim(self, name: Digest) -> SealedClaim:
        """A claim with its leaves and its RoundClosed; raises NotFound."""
        raise NotImplementedError

    def audited(self, subject: Digest) -> SealedClaim:
        """The work or bucket that an audit of `subject` repeats: itself, or what a report is about.

        Raises:
            NotFound: there is no such claim.
        """
        raise NotImplementedError

    def needed_by(self, subject: Digest) -> Mapping[Digest, Sort]:
        """All bytes that an audit of `subject`, or of a report on it, fetches by digest.

        Of work the boundary tensors that it took and, but for `given` leaves, made, and its parts;
        of a bucket all its parts. Rows come from the manifest. Raises NotFound.
        """
        raise NotImplementedError

    def holders_of(self, digest: Digest) -> tuple[PeerId, ...]:
        """Who made, named or reduced these bytes, each once; the caller asks the doer last."""
        raise NotImplementedError

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """What was noted, by name and with signatures: what a bundle of evidence is made of."""
        raise NotImplementedError

    def beside(
        self, stage: StageIndex, chunking: Chunking, names: Iterable[Digest]
    ) -> tuple[frozenset[ItemNumber], frozenset[Digest]]:
        """What a member of `stage` may hold of these claims of work and buckets.

        Returns:
            Items whose boundary tensors pass it, and claims whose parts it deals with.
        """
        raise NotImplementedError
