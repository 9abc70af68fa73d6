"""What does a seal hold in a job whose first and last stage share the embedding?"""

from collections.abc import Callable
from math import isqrt

import pytest

from contracts.governance.seals import derive_seal
from contracts.governance.rounds import applied_chunks, gradient_norm
from contracts.terms.errors import InvalidSeal
from contracts.terms.history import Kept
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.messages import AveragedChunk, GradCommit, PartDigest
from contracts.terms.signatures import Signed
from tests.support.history import MODEL, JobMaker, Member, make_members, messages_of, under

SHARED = 2  # number of the first shared chunk


def tied_job() -> JobMaker:
    """Two stages of two members, two chunks a stage, and two that both stages share."""
    members = make_members(("ann", "bob", "cem", "dan"), stages=2)
    return JobMaker(members=members, spec_changes={"model": MODEL})


def with_shared(items: list[Kept], **fields: object) -> list[Kept]:
    """`items` with the first shared chunk changed; without it if nothing is to be changed."""
    found: list[Kept] = []
    for item in items:
        if isinstance(item, Signed) and isinstance(item.message, AveragedChunk):
            message = item.message
            if (message.stage, message.chunk) == (0, SHARED):
                if fields:
                    found.append(Signed(message.model_copy(update=fields), item.signature))
                continue
        found.append(item)
    return found


def parts(items: list[Kept], stage: int) -> list[int]:
    """Squared norms of the part of the shared chunk that each GradCommit of a stage bound."""
    commits = messages_of(items, GradCommit)
    return [each.parts[SHARED].norm_squared for each in commits if each.stage == stage]


def test_derive_seal__tied_job__shared_chunks_are_there_once_and_count_once_in_the_norm() -> None:
    maker = tied_job()
    items = maker.step_items()

    derived = maker.seal(items)

    chunks = messages_of(items, AveragedChunk)
    assert [(chunk.stage, chunk.chunk) for chunk in chunks] == list(maker.spec.chunking.all)
    assert len(chunks) == 2 * 2 + 2
    assert derived.seal.gradient_norm == gradient_norm(chunks) > 0
    assert applied_chunks(maker.spec, chunks) == tuple(chunks)


def test_derive_seal__shared_chunk_missing__there_is_no_update() -> None:
    maker = tied_job()
    items = with_shared(maker.step_items())

    assert derive_seal(maker.record, under(items), last=False).seal.gradient_norm == 0


def test_derive_seal__shared_chunk_as_long_as_both_means__is_taken_and_no_longer_one() -> None:
    maker = tied_job()
    items = maker.step_items()
    both = sum(isqrt(max(parts(items, stage)) * 10**12) for stage in range(2))
    assert both**2 > 3 * 10**12 * max(parts(items, 0)), "longer than the mean of one stage alone"

    derive_seal(maker.record, under(with_shared(items, norm_squared=both**2 // 10**12)), last=False)
    with pytest.raises(InvalidSeal, match="longer than its parts"):
        too_long = with_shared(items, norm_squared=both**2 * 1001**2 // 10**18)
        derive_seal(maker.record, under(too_long), last=False)


BROKEN: dict[str, tuple[str, Callable[[JobMaker, list[Kept]], list[Kept]]]] = {
    "summed by the last stage": (
        "membership",
        lambda maker, items: with_shared(items, peer=maker.members[1].session.peer),
    ),
    "under the last stage": (
        "averaged_chunk",
        lambda _, items: with_shared(items, stage=StageIndex(1)),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_derive_seal__shared_chunk_where_it_does_not_belong__is_refused(name: str) -> None:
    maker = tied_job()
    part, break_it = BROKEN[name]

    with pytest.raises(InvalidSeal) as caught:
        derive_seal(maker.record, under(break_it(maker, maker.step_items())), last=False)

    assert caught.value.data["part"] == part


@pytest.mark.parametrize("stage", [0, 1])
def test_derive_seal__end_without_parts_of_the_shared_chunks__is_refused(stage: int) -> None:
    class Short(JobMaker):
        def parts(self, member: Member, step: StepNumber) -> tuple[PartDigest, ...]:
            found = super().parts(member, step)
            return found[:SHARED] if member.stage == stage else found

    maker = Short(members=make_members(("ann", "bob"), stages=2), spec_changes={"model": MODEL})

    with pytest.raises(InvalidSeal, match="parts are not all chunks"):
        derive_seal(maker.record, under(maker.step_items(update=False)), last=False)
