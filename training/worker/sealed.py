"""Work of sealed rounds, by the names under which it is audited.

What is kept here is what seals cover; it stays for as long as a draw may still ask for it. Who has
some bytes follows from their digest: who made or took a tensor of that digest names it in a leaf,
who sent a part names it in a claim, and the part's reducer took it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from contracts.governance.job import JobHistory
from contracts.governance.rounds import Merge, merge_of
from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import JobSpec, Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, RoundClosed, Sort, WorkClaim, leaf_names


_Holders: TypeAlias = defaultdict[Digest, dict[PeerId, None]]
"""In the order in which they are named."""


@dataclass(frozen=True)
class SealedClaim:
    """A claim that a seal covers."""

    claim: WorkClaim
    leaves: tuple[Leaf, ...] = ()  # of work and reports
    closed: RoundClosed | None = None
    """What merges it, or what it is a mean of; None of a report."""
    merged: tuple[WorkClaim, ...] = ()  # all that `closed` names, in its order
    buckets: tuple[WorkClaim, ...] = ()  # that the round was reduced to


class SealedWork:
    """Of the rounds since the oldest that a draw may ask for."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._claims: dict[Digest, SealedClaim] = {}
        self._said: dict[Digest, Signed[Message]] = {}
        self._holders: defaultdict[int, _Holders] = defaultdict(lambda: defaultdict(dict))
        """By the round in which the bytes were made."""

    def note(self, under: JobHistory, names: frozenset[Digest]) -> None:
        """Take in what the seal covers that comes next.

        Args:
            under: The history before that seal.
            names: What it covers: `SealedStep.names`.
        """
        said = {each.message.digest(): each for each in under.pending.values()}
        said = {name: each for name, each in said.items() if name in names}
        self._said |= said
        merge = merge_of(self._spec, [each.message for each in said.values()])
        for name, signed in said.items():
            if isinstance(claim := signed.message, WorkClaim):
                sealed = _sealed(claim, under.leaves.get(name, ()), merge)
                self._claims[name] = sealed
                self._note_holders(sealed)

    def _note_holders(self, sealed: SealedClaim) -> None:
        claim, holders = sealed.claim, self._holders[sealed.claim.round]
        for digest, _ in self._bytes_of(sealed):
            if claim.what == "work" or digest == claim.outputs[0].digest:
                holders[digest][claim.peer] = None
        if claim.what == "work":
            reducers = {(each.group, each.bucket): each.peer for each in sealed.buckets}
            for place, output in zip(self._own_buckets(claim), claim.outputs, strict=True):
                if place in reducers:
                    holders[output.digest][reducers[place]] = None

    def _own_buckets(self, claim: WorkClaim) -> tuple[tuple[int, int], ...]:
        return self._spec.chunking.of_stage(claim.group)

    def forget_before(self, step: StepNumber) -> None:
        """Nobody asks for anything of an earlier round any more."""
        self._claims = {n: each for n, each in self._claims.items() if each.claim.round >= step}
        self._said = {name: each for name, each in self._said.items() if _round(each) >= step}
        for round in [each for each in self._holders if each < step]:
            del self._holders[round]

    def claim(self, name: Digest) -> SealedClaim:
        """A claim with its leaves and its RoundClosed; raises NotFound."""
        if (found := self._claims.get(name)) is None:
            raise NotFound("no sealed claim of this name is known here", digest=name.hex())
        return found

    def audited(self, subject: Digest) -> SealedClaim:
        """The work or bucket that an audit of `subject` repeats: itself, or what a report is about.

        Raises:
            NotFound: there is no such claim.
        """
        found = self.claim(subject)
        return self.claim(found.claim.subject) if found.claim.what == "report" else found

    def needed_by(self, subject: Digest) -> Mapping[Digest, Sort]:
        """All bytes that an audit of `subject`, or of a report on it, fetches by digest.

        Of work the boundary tensors that it took and, but for `given` leaves, made, and its parts;
        of a bucket all its parts. Rows come from the manifest. Raises NotFound.
        """
        return dict(self._fetched_for(self.audited(subject)))

    def _bytes_of(self, sealed: SealedClaim) -> Iterator[tuple[Digest, Sort]]:
        """What an audit of a claim fetches, and of a bucket itself."""
        yield from self._fetched_for(sealed)
        if sealed.claim.what == "bucket":
            yield sealed.claim.outputs[0].digest, "part"

    def _fetched_for(self, sealed: SealedClaim) -> Iterator[tuple[Digest, Sort]]:
        claim = sealed.claim
        if claim.what == "work":
            for leaf in sealed.leaves:
                names = leaf_names(claim.group, self._spec.batch.stages, leaf.item)
                skipped = {names.rows, *((names.y, names.dx) if leaf.given else ())}
                for name, digest in leaf.tensors:
                    if name not in skipped:
                        yield digest, "boundary"
            for output in claim.outputs:
                yield output.digest, "part"
        elif claim.what == "bucket":
            place = (claim.group, claim.bucket)
            for each in sealed.merged:
                if place in self._own_buckets(each):
                    number = self._own_buckets(each).index(place)
                    yield each.outputs[number].digest, "part"

    def holders_of(self, digest: Digest) -> tuple[PeerId, ...]:
        """Who made, named or reduced these bytes, each once; the caller asks the doer last."""
        found = (peer for each in self._holders.values() for peer in each.get(digest, ()))
        return tuple(dict.fromkeys(found))

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """What was noted, by name and with signatures: what a bundle of evidence is made of."""
        return self._said


def _sealed(claim: WorkClaim, leaves: tuple[Leaf, ...], merge: Merge | None) -> SealedClaim:
    if merge is None or claim.what not in ("work", "bucket"):
        return SealedClaim(claim, leaves)
    return SealedClaim(claim, leaves, merge.closed, merge.merged, merge.buckets)


def _round(signed: Signed[Message]) -> int:
    found = getattr(signed.message, "round", getattr(signed.message, "step", 0))
    assert isinstance(found, int)  # every message under a seal has one of them
    return found
