"""A claim that a seal covers, with all that an audit of it has to know. Pure."""

from dataclasses import dataclass

from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.work import Leaf, RoundClosed, Sort, WorkClaim, leaf_names


@dataclass(frozen=True)
class SealedClaim:
    """A claim that a seal covers."""

    claim: WorkClaim
    leaves: tuple[Leaf, ...] = ()  # of work and reports
    closed: RoundClosed | None = None
    """What merges it, or what it is a mean of; None of a report."""
    merged: tuple[WorkClaim, ...] = ()  # all that `closed` names, in its order


def needed(spec: JobSpec, sealed: SealedClaim) -> dict[Digest, Sort]:
    """All bytes that an audit of a claim fetches by digest.

    Of work the boundary tensors that it took and, but for `given` leaves, made, and its parts; of a
    bucket all its parts. Rows come from the manifest.
    """
    claim = sealed.claim
    if claim.what == "bucket":
        groups = spec.chunking.stages_of((claim.group, claim.bucket))
        own = (each for each in sealed.merged if each.group in groups)
        return {each.outputs[claim.bucket].digest: "part" for each in own}
    found: dict[Digest, Sort] = {}
    for leaf in sealed.leaves:
        names = leaf_names(claim.group, spec.batch.stages, leaf.item)
        taken, made = (names.x, names.dy), () if leaf.given else (names.y, names.dx)
        digests = (leaf.tensor(name) for name in (*taken, *made))
        found |= {digest: "boundary" for digest in digests if digest != ZERO_DIGEST}
    return found | {output.digest: "part" for output in claim.outputs}
