"""What the messages of one round establish: what is merged, who is paid, how long it is. Pure.

A round makes an update if its RoundClosed is there and every bucket (`terms/chunks`) has the claim
of a reducer. Then the seal covers these bucket claims and the claims of work that RoundClosed
names. Otherwise the round is void: no work is sealed or paid. Claims that are not merged stay
pending for a later RoundClosed, until an update changes the state that they started from, or, where
late claims are merged, until the next update. Reports, beacons and Notices are always covered;
claims of a state never, as no strategy makes or checks any yet. Nobody chooses what a seal covers:
it follows from what was said.

Invariants: an item is sealed once a group; all groups seal the same items; one name of a tensor has
one digest; a void round moves neither cursor nor gates. Source: docs/protocol.md 3. Units: norms
squared 1e-12, the gradient norm 1e-9.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import TypeVar

from contracts.governance.checking import Reported
from contracts.governance.gates import Gates, gate, peer_step, remember
from contracts.governance.record import JobRecord
from contracts.terms.amounts import Flops
from contracts.terms.chunks import Chunk
from contracts.terms.errors import Equivocation, InvalidSeal, Malformed
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import Cursor, ItemNumber, contains, count
from contracts.terms.messages import GradientCodecName, JobSpec, Message
from contracts.terms.work import Leaf, RoundClosed, WhatField, WorkClaim, findings_of

M = TypeVar("M", bound=Message)

Leaves = Mapping[Digest, tuple[Leaf, ...]]
"""Of claims of work and reports, by the digest of the claim."""

_ROUNDING: Mapping[GradientCodecName, tuple[int, int]] = {
    "none": (10**6, 10**6),
    "float16": (2**10, 4 * 10**8),
    "bfloat16": (2**7, 10**6),
}
"""How far rounding may carry a mean beyond the weighted mean of norms: 1 / this of it, and 1e-12.

fp32 sums: 1e-6. Half a unit in the last place of each element: 2^-11 (fp16) and 2^-8 (bf16) of it,
and of what is too small for fp16 2^-25 each, 4e-4 for the longest chunk there is.
"""


@dataclass(frozen=True)
class Merge:
    """An update: what is merged, and the claims of all buckets in the order of `Chunking.all`."""

    closed: RoundClosed
    merged: tuple[WorkClaim, ...]
    buckets: tuple[WorkClaim, ...]


@dataclass(frozen=True)
class RoundOutcome:
    """What a round establishes; `merge` is None in a void one."""

    gates: Gates  # after the round
    cursor: Cursor
    updates: int
    reports: tuple[Reported, ...] = ()
    merge: Merge | None = None
    work: Mapping[PeerId, Flops] = field(default_factory=dict)  # that is paid
    paid: frozenset[Digest] = frozenset()  # claims that `work` is made of
    above: frozenset[Digest] = frozenset()  # claims above the bound of the norm gate
    gradient_norm: int = 0  # that clips the update, 1e-9


def require(condition: bool, part: str, message: str) -> None:
    """Refuse a seal because of `part`."""
    if not condition:
        raise InvalidSeal(f"{part}: {message}", part=part)


def of_kind(messages: Iterable[Message], kind: type[M]) -> list[M]:
    """Messages of one kind, in their order."""
    return [message for message in messages if isinstance(message, kind)]


def claims_of(messages: Iterable[Message], what: WhatField) -> list[WorkClaim]:
    """Claims of one kind of work, in their order."""
    return [claim for claim in of_kind(messages, WorkClaim) if claim.what == what]


def flops_of(spec: JobSpec, claim: WorkClaim) -> Flops:
    """FLOPs that a claim of work is paid for; 0 for every other claim."""
    return Flops(count(claim.items) * spec.item_flops[claim.group])


# ------------------------------------------------------------------------------ what a seal covers


def merge_of(spec: JobSpec, messages: Iterable[Message]) -> Merge | None:
    """The update that the next seal makes over pending `messages`; None: it makes none.

    A bucket that several peers reduced counts as its dealt reducer claims it, or else as the claim
    with the least digest does. What RoundClosed names and is not there is left out.
    """
    messages = list(messages)
    closed = next(iter(of_kind(messages, RoundClosed)), None)
    if closed is None:
        return None
    subject = closed.digest()
    reduced: defaultdict[Chunk, list[WorkClaim]] = defaultdict(list)
    for claim in claims_of(messages, "bucket"):
        if claim.subject == subject:
            reduced[claim.group, claim.bucket].append(claim)
    dealt = dict(zip(spec.chunking.all, closed.reducers, strict=False))
    buckets = [
        min(found, key=lambda each: (each.peer != dealt[chunk], each.digest()))
        for chunk in dealt
        if (found := reduced[chunk])
    ]
    if len(buckets) != len(spec.chunking.all):
        return None
    work = {claim.digest(): claim for claim in claims_of(messages, "work")}
    merged = tuple(work[name] for name, _ in closed.claims if name in work)
    return Merge(closed, merged, tuple(buckets))


def sealed_set(spec: JobSpec, pending: Iterable[Message]) -> frozenset[Digest]:
    """Which of the `pending` messages, all that no seal has covered yet, the next one covers."""
    pending = list(pending)
    merge = merge_of(spec, pending)
    covered = [] if merge is None else [*merge.merged, *merge.buckets]
    always = [each for each in pending if not isinstance(each, WorkClaim) or each.what == "report"]
    return frozenset(each.digest() for each in [*covered, *always])


def eligible(record: JobRecord, claim: WorkClaim) -> bool:
    """Whether a RoundClosed after the newest seal may still name a claim."""
    is_member = record.members.get(claim.peer) == claim.group
    return claim.what == "work" and is_member and _fits(record, claim)


def is_late(record: JobRecord, claim: WorkClaim) -> bool:
    """Whether work started from the state before the newest one."""
    return claim.round <= record.newest_update


def _fits(record: JobRecord, claim: WorkClaim) -> bool:
    return claim.previous == record.seal_before(claim.round)


# --------------------------------------------------------------------------------- what it says


def read_round(record: JobRecord, messages: Sequence[Message], leaves: Leaves) -> RoundOutcome:
    """What the messages establish that the seal after `record` covers.

    Args:
        record: Before the seal, with the members of the round.
        messages: Those of `sealed_set`, in any order.
        leaves: Of the claims of work and the reports among them.

    Raises:
        Equivocation: two values under one name.
        InvalidSeal: they contradict each other or the record; data: `part`.
    """
    _no_equivocation(messages)
    step = StepNumber(record.step + 1)
    require(all(_is_of(each, step) for each in messages), "step", f"not all of step {step}")
    reports = tuple(_read_report(each, leaves) for each in claims_of(messages, "report"))
    for closed in of_kind(messages, RoundClosed):
        _check_closed(record, closed)
    merge = merge_of(record.spec, messages)
    if merge is None:
        return RoundOutcome(record.gates, record.cursor, record.updates, reports)
    _check_merged(record, merge, leaves)
    named = {name for claim in merge.merged for name in claim.reports}
    known = record.reported | record.reported_before | {each.claim.digest() for each in reports}
    require(named <= known, "reports", "one that a claim names is missing")
    for claim in merge.buckets:
        _check_member(record, claim)
        require(claim.previous == record.previous, "bucket", "extends another seal")
        check_bucket(record.spec, merge.closed, merge.merged, claim)
    return _outcome(record, step, merge, reports)


def _outcome(
    record: JobRecord, step: StepNumber, merge: Merge, reports: tuple[Reported, ...]
) -> RoundOutcome:
    spec = record.spec
    is_counted = record.targets is not None or spec.data.targets == ZERO_DIGEST
    require(is_counted, "targets", "the counts that the JobSpec names are missing")
    steps = [
        peer_step(
            claim,
            record.leases[claim.peer].account,
            record.weights.of(claim.items),
            spec.batch.num_vectors,
        )
        for claim in merge.merged
    ]
    gated = gate(record.gates, step, steps, norms_grow=spec.batch.norms_grow)
    weights = dict(merge.closed.claims)
    require(weights == gated.weights, "weights", "not those of the norm gate")
    items = {item for claim in merge.merged for item in claim.numbers}
    try:
        cursor = record.cursor.after(items)
    except Malformed as error:
        raise InvalidSeal(f"items: {error.message}", part="items") from error
    replaced = {
        dealt
        for dealt, claim in zip(merge.closed.reducers, merge.buckets, strict=True)
        if dealt != claim.peer
    }
    paid = [claim for claim in merge.merged if claim.peer not in replaced]
    work = Counter[PeerId]()
    for claim in paid:
        work[claim.peer] += flops_of(spec, claim)
    squared = sum(
        claim.outputs[0].norm_squared
        for claim in merge.buckets
        if not spec.batch.vector_of(claim.bucket)
    )
    return RoundOutcome(
        remember(record.gates, steps),
        cursor,
        record.updates + 1,
        reports,
        merge,
        {peer: Flops(flops) for peer, flops in work.items()},
        frozenset(claim.digest() for claim in paid),
        gated.above,
        isqrt(squared * 10**6),
    )


def _is_of(message: Message, step: StepNumber) -> bool:
    match message:
        case WorkClaim(what="work"):
            return message.round <= step
        case WorkClaim(what="report"):
            return message.round < step
        case WorkClaim() | RoundClosed():
            return message.round == step
    return bool(getattr(message, "step", None) == step)


def _no_equivocation(messages: Sequence[Message]) -> None:
    said: dict[tuple[object, ...], Digest] = {}
    for message in messages:
        name, value = message.stated_name(), message.digest()
        require(name is not None, "kind", f"no seal covers a {message.kind}")
        assert name is not None
        if name in said:
            require(said[name] != value, "messages", f"{message.kind} appears twice")
            raise Equivocation(
                f"two values of one {message.kind}", first=said[name].hex(), second=value.hex()
            )
        said[name] = value


def _read_report(claim: WorkClaim, leaves: Leaves) -> Reported:
    found = leaves_of(claim, leaves)
    require(claim.leaves == claim_leaves_root(found), "leaves", "not those that a claim names")
    try:
        return Reported(claim, findings_of(found))
    except Malformed as error:
        raise InvalidSeal(f"leaves: {error.message}", part="leaves") from error


def leaves_of(claim: WorkClaim, leaves: Leaves) -> tuple[Leaf, ...]:
    """The leaves of a claim.

    Raises:
        InvalidSeal: they are not there. Whether they are those that it names is not checked here.
    """
    found = leaves.get(claim.digest())
    require(found is not None, "leaves", f"those of a {claim.what} are missing")
    assert found is not None
    return found


# ------------------------------------------------------------------------------------- its rules


def check_claim(record: JobRecord, claim: WorkClaim, leaves: Sequence[Leaf]) -> None:
    """Refuse a claim of work that no RoundClosed could name, whatever else is said.

    That its peer is a member, its base that of its group and its reports known is for `read_round`.

    Raises:
        InvalidSeal: it extends another seal, or contradicts its leaves or the JobSpec.
    """
    require(claim.what == "work", "claim", "is not of work")
    require(claim.group < record.spec.batch.stages, "claim", "there is no such group")
    require(_fits(record, claim), "claim", "extends another seal")
    require(claim.leaves == claim_leaves_root(leaves), "leaves", "not those that a claim names")
    require(tuple(leaf.item for leaf in leaves) == claim.numbers, "leaves", "of other items")
    ahead = claim.round - 1 if record.spec.batch.works_ahead else claim.round
    bases = [leaf.base_round for leaf in leaves]
    is_of_base = bases == sorted(bases) and {ahead, claim.round}.issuperset(bases)
    require(is_of_base, "leaves", "computed in the state of another round")
    buckets = [number for _, number in record.spec.chunking.of_stage(claim.group)]
    whole = [output.bucket for output in claim.outputs] == buckets
    require(whole, "claim", "outputs are not all buckets of its group")
    free = all(record.cursor.is_free(item) for item in claim.numbers)
    require(free, "items", "one is sealed already, or too far ahead")
    _check_norms(record.spec, claim)


def _check_norms(spec: JobSpec, claim: WorkClaim) -> None:
    squares = Counter[int]()
    for output in claim.outputs:
        squares[spec.batch.vector_of(output.bucket)] += output.norm_squared
    for vector, squared in squares.items():
        most = spec.most_squared(vector)
        require(most is None or squared <= most, "norm", "longer than such a vector can be")


def check_bucket(
    spec: JobSpec, closed: RoundClosed, merged: Iterable[WorkClaim], bucket: WorkClaim
) -> None:
    """Refuse a bucket that is longer than what RoundClosed merges into it (docs/protocol.md 3.5).

    Args:
        spec: Of the job.
        closed: What the bucket has to be a mean of.
        merged: All claims that it names.
        bucket: What a reducer says.

    Raises:
        InvalidSeal: it is too long, there is no such bucket, or it is of another RoundClosed.
    """
    groups = spec.chunking.stages_of((bucket.group, bucket.bucket))
    require(bucket.what == "bucket" and bool(groups), "bucket", "there is no such bucket")
    is_of_it = (bucket.subject, bucket.round) == (closed.digest(), closed.round)
    require(is_of_it, "bucket", "of another RoundClosed")
    weights = dict(closed.claims)
    lengths: dict[StageIndex, list[tuple[int, int]]] = {group: [] for group in groups}
    for claim in merged:
        if claim.group in lengths:
            length = isqrt(claim.outputs[bucket.bucket].norm_squared * 10**12) + 1
            lengths[claim.group].append((weights[claim.digest()], length))
    longest = sum(map(_weighted_mean, lengths.values()))
    share, least = _ROUNDING[spec.rules.mean_codec]
    length = isqrt(bucket.outputs[0].norm_squared * 10**12)
    require(length <= longest + longest // share + least, "norm", "a mean longer than its parts")


def _weighted_mean(weighed: Sequence[tuple[int, int]]) -> int:
    total = sum(weight for weight, _ in weighed)
    return sum(weight * value for weight, value in weighed) // total if total else 0


def _check_member(record: JobRecord, claim: WorkClaim) -> None:
    is_member = record.members.get(claim.peer) == claim.group
    require(is_member, "membership", f"a {claim.what} of a peer that is not of its group")


def _check_closed(record: JobRecord, closed: RoundClosed) -> None:
    chunks = record.spec.chunking.all
    require(len(closed.bases) == record.spec.batch.stages, "bases", "not one a group")
    require(len(closed.reducers) == len(chunks), "reducers", "not one a bucket")
    for (group, _), peer in zip(chunks, closed.reducers, strict=True):
        require(record.members.get(peer) == group, "reducers", "one is not of its group")


def _check_merged(record: JobRecord, merge: Merge, leaves: Leaves) -> None:
    """Claims that are merged fit the record, and each other."""
    is_whole = len(merge.merged) == len(merge.closed.claims)
    require(is_whole, "round_closed", "names a claim of work that is not there")
    is_new = not all(is_late(record, claim) for claim in merge.merged)
    require(is_new, "bases", "no claim started from the newest state")
    given = dict(merge.closed.given)
    items: list[set[ItemNumber]] = [set() for _ in range(record.spec.batch.stages)]
    digests: dict[str, Digest] = {}
    for claim in merge.merged:
        own = leaves_of(claim, leaves)
        check_claim(record, claim, own)
        _check_member(record, claim)
        bases = record.bases if is_late(record, claim) else merge.closed.bases
        require(claim.base == bases[claim.group], "bases", "a claim started from another state")
        once = items[claim.group].isdisjoint(claim.numbers)
        require(once, "items", "one is claimed twice in a group")
        items[claim.group].update(claim.numbers)
        allowed = given.get(claim.group, ())
        signed = all(contains(allowed, leaf.item) for leaf in own if leaf.given)
        require(signed, "given", "a leaf that RoundClosed does not say is given")
        for name, digest in (tensor for leaf in own for tensor in leaf.tensors):
            same = digests.setdefault(name, digest) == digest
            require(same, "tensors", f"{name} has two digests")
    require(all(each == items[0] for each in items), "items", "groups differ in theirs")
