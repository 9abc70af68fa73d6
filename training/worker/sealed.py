"""Work of sealed rounds, by the names under which it is audited.

What is kept here is what seals cover; it stays for as long as a draw may still ask for it. Who has
some bytes follows from their digest: who made or took a tensor of that digest names it in a leaf,
who sent a part names it in a claim, and the part's reducer took it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from contracts.governance.job import JobHistory
from contracts.governance.rounds import claims_of, of_kind
from contracts.governance.sealed import SealedClaim, needed
from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import JobSpec, Message
from contracts.terms.signatures import Signed
from contracts.terms.work import RoundClosed, Sort, WorkClaim


@dataclass(frozen=True)
class _Noted:
    """What one seal covers."""

    said: dict[Digest, Signed[Message]]
    claims: dict[Digest, SealedClaim]
    holders: Mapping[Digest, tuple[PeerId, ...]]


class SealedWork:
    """Of the rounds since the oldest that a draw may ask for."""

    def __init__(self) -> None:
        self._seals: dict[StepNumber, _Noted] = {}  # ascending
        self._spec: JobSpec | None = None

    def note(self, under: JobHistory, names: frozenset[Digest]) -> None:
        """Take in what the seal covers that comes next.

        Args:
            under: The history before that seal.
            names: What it covers: `SealedStep.names`.
        """
        assert under.record is not None  # before a seal there is an opening
        self._spec = spec = under.record.spec
        signed = (each for each in under.pending.values())
        said = {name: each for each in signed if (name := each.message.digest()) in names}
        messages = [each.message for each in said.values()]
        closed = next(iter(of_kind(messages, RoundClosed)), None)
        work = {claim.digest(): claim for claim in claims_of(messages, "work")}
        merged = (
            () if closed is None else tuple(work[name] for name, _ in closed.claims if name in work)
        )
        claims = {
            claim.digest(): SealedClaim(claim, under.leaves.get(claim.digest(), ()))
            if claim.what == "report"
            else SealedClaim(claim, under.leaves.get(claim.digest(), ()), closed, merged)
            for claim in of_kind(messages, WorkClaim)
        }
        holders = defaultdict[Digest, dict[PeerId, None]](dict)
        for digest, peer in _holders(spec, claims.values()):
            holders[digest][peer] = None
        step = StepNumber(under.record.step + 1)
        self._seals[step] = _Noted(said, claims, {each: (*own,) for each, own in holders.items()})

    def forget_before(self, step: StepNumber) -> None:
        """Nobody asks for anything of an earlier round any more.

        What a later seal holds stays, whenever it was made.
        """
        self._seals = {seal: noted for seal, noted in self._seals.items() if seal >= step}

    def claim(self, name: Digest) -> SealedClaim:
        """A claim with its leaves and its RoundClosed; raises NotFound."""
        for noted in self._seals.values():
            if name in noted.claims:
                return noted.claims[name]
        raise NotFound("no seal of late holds this claim", name=name.hex())

    def covered_by(self, step: StepNumber) -> Set[Digest]:
        """Names of the work and the buckets that the seal of a step covers."""
        noted = self._seals.get(step)
        claims = noted.claims.items() if noted else ()
        return {name for name, each in claims if each.claim.what != "report"}

    def made_in(self, subject: Digest) -> Set[StepNumber]:
        """The rounds in which was made what an audit of `subject` fetches.

        Of a bucket perhaps several: what the rounds before have handed on. Raises NotFound.
        """
        found = self.audited(subject)
        claims = found.merged if found.claim.what == "bucket" else (found.claim,)
        return {claim.round for claim in claims}

    def oldest_of(self, step: StepNumber) -> StepNumber:
        """The oldest round whose work seals from that of `step` on cover."""
        seals = (noted for seal, noted in self._seals.items() if seal >= step)
        claims = (each.claim for noted in seals for each in noted.claims.values())
        return min((each.round for each in claims if each.what == "work"), default=step)

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
        assert self._spec is not None  # since the first seal, without which nothing is found
        return needed(self._spec, self.audited(subject))

    def holders_of(self, digest: Digest) -> tuple[PeerId, ...]:
        """Who made, named or reduced these bytes, each once; the caller asks the doer last."""
        found = (noted.holders.get(digest, ()) for noted in self._seals.values())
        return tuple(dict.fromkeys(peer for holders in found for peer in holders))

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """What was noted, by name and with signatures: what a bundle of evidence is made of."""
        return {name: each for noted in self._seals.values() for name, each in noted.said.items()}


def _holders(spec: JobSpec, claims: Iterable[SealedClaim]) -> Iterator[tuple[Digest, PeerId]]:
    for sealed in claims:
        claim = sealed.claim
        if claim.what == "bucket":
            groups = spec.chunking.stages_of((claim.group, claim.bucket))
            for each in sealed.merged:
                if each.group in groups:
                    yield each.outputs[claim.bucket].digest, claim.peer
        elif claim.what == "work":
            for digest in needed(spec, sealed):
                yield digest, claim.peer
