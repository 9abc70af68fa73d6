"""What does a seal hold in a job whose first and last stage share the embedding?"""

from collections.abc import Sequence
from math import isqrt

import pytest

from contracts.governance.job import follow
from contracts.governance.rounds import (
    check_bucket,
    check_claim,
    flops_of,
    merge_of,
)
from contracts.governance.seals import derive_seal
from contracts.terms.errors import Conflict, InvalidSeal
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, StageIndex, StepNumber
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Output, WorkClaim
from tests.support.history import (
    MODEL,
    JobMaker,
    Member,
    claims_in,
    make_members,
    messages_of,
    under,
)
from tests.support.local_jobs import of_local_steps

SHARED = (StageIndex(0), ChunkIndex(2))  # the first shared bucket


def tied_job() -> JobMaker:
    """Two stages of two members, two chunks a stage, and two that both stages share."""
    members = make_members(("ann", "bob", "cem", "dan"), stages=2)
    return JobMaker(members=members, spec_changes={"model": MODEL})


def with_shared(items: Sequence[Kept], **fields: object) -> list[Kept]:
    """`items` with the claim of the first shared bucket changed; without it if in nothing."""
    found: list[Kept] = []
    for item in items:
        if isinstance(item, Signed) and isinstance(item.message, WorkClaim):
            message = item.message
            if message.what == "bucket" and (message.group, message.bucket) == SHARED:
                if fields:
                    found.append(Signed(message.model_copy(update=fields), item.signature))
                continue
        found.append(item)
    return found


def long(norm_squared: int) -> dict[str, tuple[Output, ...]]:
    """Fields of the claim of the shared bucket, of this length."""
    value = {"bucket": SHARED[1], "digest": b"d" * 32, "norm_squared": norm_squared}
    return {"outputs": (Output.from_value(value),)}


def test_derive_seal__tied_job__shared_chunks_are_there_once_and_count_once_in_the_norm() -> None:
    maker = tied_job()
    items = maker.step_items()

    derived = maker.seal(items)

    buckets = claims_in(items, "bucket")
    assert [(each.group, each.bucket) for each in buckets] == list(maker.spec.chunking.all)
    assert len(buckets) == 2 * 2 + 2
    squared = sum(each.outputs[0].norm_squared for each in buckets)
    assert derived.seal.gradient_norm == isqrt(squared * 10**6) > 0
    merge = merge_of(maker.spec, reversed(messages_of(items, Message)))
    assert merge is not None and merge.buckets == tuple(buckets)


def test_derive_seal__shared_chunk_missing__there_is_no_update() -> None:
    maker = tied_job()
    items = with_shared(maker.step_items())

    assert merge_of(maker.spec, messages_of(items, Message)) is None
    assert derive_seal(maker.record, under(items), last=False).seal.gradient_norm == 0


def test_derive_seal__shared_chunk_as_long_as_both_means__is_taken_and_no_longer_one() -> None:
    maker = tied_job()
    items = maker.step_items()
    longest = [
        max(each.outputs[2].norm_squared for each in claims_in(items, "work") if each.group == s)
        for s in range(2)
    ]
    both = sum(isqrt(each * 10**12) for each in longest)
    assert both**2 > 3 * 10**12 * longest[0], "longer than the mean of one stage alone"

    taken = with_shared(items, **long(both**2 // 10**12))
    derive_seal(maker.record, under(taken), last=False)
    with pytest.raises(InvalidSeal, match="longer than its parts"):
        too_long = with_shared(items, **long(both**2 * 1001**2 // 10**18))
        derive_seal(maker.record, under(too_long), last=False)


def test_derive_seal__shared_chunk_reduced_by_the_last_stage__is_refused() -> None:
    maker = tied_job()
    items = with_shared(maker.step_items(), peer=maker.members[1].session.peer)

    with pytest.raises(InvalidSeal) as caught:
        derive_seal(maker.record, under(items), last=False)

    assert caught.value.data["part"] == "membership"


def test_derive_seal__shared_chunk_under_the_last_stage__counts_for_nothing() -> None:
    maker = tied_job()
    items = with_shared(maker.step_items(), group=StageIndex(1))
    claim = claims_in(items, "bucket")[2]
    merge = merge_of(maker.spec, messages_of(maker.step_items(), Message))
    assert merge is not None

    assert derive_seal(maker.record, under(items), last=False).seal.updates == 0
    with pytest.raises(InvalidSeal, match="no such bucket"):
        check_bucket(maker.spec, merge.closed, merge.merged, claim)


@pytest.mark.parametrize("stage", [0, 1])
def test_derive_seal__end_without_parts_of_the_shared_chunks__is_refused(stage: int) -> None:
    class Short(JobMaker):
        def outputs(self, member: Member, step: StepNumber) -> tuple[Output, ...]:
            found = super().outputs(member, step)
            return found[: SHARED[1]] if member.stage == stage else found

    maker = Short(members=make_members(("ann", "bob"), stages=2), spec_changes={"model": MODEL})
    honest = JobMaker(members=maker.members, spec_changes={"model": MODEL})
    items = maker.step_items(update=False)
    claims = claims_in(items, "work")
    closed = maker.closed(claims)
    buckets = maker.bucket_claims(closed, claims_in(honest.step_items(), "work"))

    with pytest.raises(InvalidSeal, match="outputs are not all buckets"):
        derive_seal(maker.record, under([*items, maker.session.sign(closed), *buckets]), last=False)


@pytest.mark.parametrize("vector", [1, 2])
def test_check_claim__moments_longer_than_twice_what_gradients_are_clipped_to__refused(
    vector: int,
) -> None:
    maker = JobMaker(members=make_members("abc"), spec_changes=of_local_steps(moments="mean"))
    claim, leaves = maker.claim(maker.members[0])
    chunks, most = maker.spec.batch.chunks, 4 * maker.spec.optimizer.clip_norm**2
    first = vector * chunks

    def told(squared: int) -> WorkClaim:
        outputs = [
            each.model_copy(update={"norm_squared": 0 if at != first else squared})
            if at // chunks == vector
            else each
            for at, each in enumerate(claim.outputs)
        ]
        return claim.model_copy(update={"outputs": tuple(outputs)})

    check_claim(maker.record, told(most), leaves)
    with pytest.raises(InvalidSeal, match="longer than such a vector can be"):
        check_claim(maker.record, told(most + 1), leaves)


def test_flops_of__claim__are_those_of_its_items_and_none_but_for_work() -> None:
    maker = tied_job()
    items = maker.step_items()
    work, bucket = claims_in(items, "work")[0], claims_in(items, "bucket")[0]

    assert flops_of(maker.spec, work) == 3 * maker.spec.item_flops[0]
    assert maker.record.weights.of(work.items) == 3 * maker.spec.batch.rows_per_unit
    assert flops_of(maker.spec, bucket) == 0


def test_state_claim__of_a_member__is_refused_and_no_seal_covers_it() -> None:
    maker = JobMaker()
    maker.seal_step()
    member = maker.members[0]
    claim, _ = maker.claim(member, outputs=long(0)["outputs"])
    empty = {"items": (), "leaves": ZERO_DIGEST, "what": "state"}
    signed = member.session.sign(WorkClaim.from_value(claim.value() | empty))

    with pytest.raises(Conflict):
        follow(maker.history, signed)
    assert not derive_seal(maker.record, under([signed]), last=True).names
