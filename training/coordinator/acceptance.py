"""What a coordinator takes from a peer: only claims from which a valid seal can follow. Pure.

Governance refuses a seal over anything else (`contracts.governance.rounds`), so what would make the
round unsealable is refused here, at its door, and costs its sender the round.
"""

from collections.abc import Collection, Iterable, Sequence

from contracts.governance.record import JobRecord
from contracts.governance.rounds import check_bucket, check_claim
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest
from contracts.terms.work import Leaf, WorkClaim
from training.rounds.state import Commit, Reduce, RoundState, Work
from training.strategies.port import Bucket


def check_work(
    state: RoundState,
    record: JobRecord,
    claim: WorkClaim,
    leaves: Sequence[Leaf],
    reports: Collection[Digest],
) -> None:
    """Refuse a claim of work that no RoundClosed could name, or of other work than what counts.

    Bases are for the machine to compare, once all of a group have claimed.

    Args:
        state: Of the round in work.
        record: What the seals have established.
        claim: Of work.
        leaves: Its leaves.
        reports: That it may name.

    Raises:
        InvalidSeal: it contradicts its leaves, the JobSpec or the seals.
        Malformed: its leaves are not the results that count as its peer's, or it names a report
            that was never handed in.
    """
    member = state.members.get(claim.peer)
    is_of_round = claim.job == state.terms.job and claim.round == state.round
    _need(is_of_round and member is not None, "is of another round, or of no member")
    assert member is not None
    _need(claim.group == member.group, "is of another group")
    check_claim(record, claim, leaves)
    _need(set(claim.reports) <= set(reports), "names reports that were never handed in")
    phase = state.phase
    if isinstance(phase, Work | Commit):
        need_own_bytes(claim, phase.open.claims.values())
    counted = phase.open.counted[claim.group] if isinstance(phase, Work | Commit) else {}
    for leaf in leaves:
        result = counted.get(leaf.item)
        fits = result is not None and (result.peer, result.tensors, result.given) == (
            claim.peer,
            leaf.tensors,
            leaf.given,
        )
        _need(fits, f"says something else of item {leaf.item} than what counts")
        assert result is not None
        _need(result.loss == (leaf.numbers[0] if leaf.numbers else None), "states another loss")


def check_reduced(
    state: RoundState, record: JobRecord, claim: WorkClaim, asked: Collection[Bucket]
) -> None:
    """Refuse the claim of a bucket that its sender was not asked for, or that is too long.

    Raises:
        InvalidSeal: it is longer than what is merged, or of another RoundClosed.
        Malformed: it was not asked for, or extends another seal.
    """
    phase = state.phase
    bucket = claim.group, claim.bucket
    is_asked = isinstance(phase, Reduce) and claim.what == "bucket" and bucket in asked
    _need(is_asked and claim.previous == record.previous, "was not asked for")
    assert isinstance(phase, Reduce)
    merged = [phase.open.claims[name] for name in phase.closed.weights]
    need_own_bytes(claim, (each.message for each in phase.buckets.values()))
    check_bucket(record.spec, phase.closed, merged, claim)


def need_own_bytes(claim: WorkClaim, others: Iterable[WorkClaim]) -> None:
    """Refuse a digest that is bound already to another bucket, or another norm.

    What is delivered and held is known by digests alone: who copied one under terms that its bytes
    cannot meet would take the other claim down, or have a seal cover what nobody can apply. Whoever
    made the bytes is first, as nobody else knows their digest.
    """
    own = {output.digest: output for output in claim.outputs}
    for other in others:
        for output in other.outputs:
            mine = own.get(output.digest)
            if mine is None:
                continue
            places = (claim.group, mine.bucket), (other.group, output.bucket)
            is_zero = not mine.norm_squared  # zeros are the same in buckets of one length
            fits = mine.norm_squared == output.norm_squared
            fits = fits and (is_zero or places[0] == places[1])
            _need(fits, "names bytes of another bucket, or says another norm of them")


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise Malformed(f"the claim {problem}")
