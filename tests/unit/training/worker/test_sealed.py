"""What of sealed work may a member of a stage be asked for, by the names of what was drawn?"""

import pytest

from contracts.governance.job import JobHistory
from contracts.terms.chunks import Chunking
from contracts.terms.errors import NotFound
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import (
    Assignment,
    AuditReport,
    AveragedChunk,
    AverageMember,
    AverageSet,
    GradCommit,
    Message,
    PartDigest,
    StepClose,
    UnitLeaf,
)
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.dockets import CheckedJob, peer
from tests.support.history import DOMAIN, make_digest
from training.worker.sealed import SealedWork

JOB = CheckedJob()
CHUNKING = Chunking(num_stages=3, num_chunks=1, is_tied=False)
TIED = Chunking(num_stages=3, num_chunks=1, is_tied=True)


def commit_of(name: str, stage: int, parts: int = 1) -> GradCommit:
    """Somebody's GradCommit of step 1."""
    bound = tuple(
        PartDigest(chunk=ChunkIndex(number), digest=make_digest(f"{name} {number}"), norm_squared=1)
        for number in range(parts)
    )
    return JOB.commit(name, stage=StageIndex(stage), parts=bound)


def leaf(unit: int) -> UnitLeaf:
    """A unit of no tensors."""
    zero = ZERO_DIGEST
    return UnitLeaf(unit=ItemNumber(unit), x=zero, y=zero, dy=zero, dx=zero, loss=None)


def sealed(work: dict[GradCommit, tuple[int, ...]], *others: Message) -> SealedWork:
    """An index of these GradCommits with their units, and of other messages."""
    index = SealedWork()
    index.note(under(work, *others))
    return index


def under(work: dict[GradCommit, tuple[int, ...]], *others: Message) -> JobHistory:
    """What a seal will hold."""
    messages = [*work, *others]
    pending = {(each.digest(),): Signed[Message](each, bytes(64)) for each in messages}
    leaves = {commit.digest(): tuple(map(leaf, units)) for commit, units in work.items()}
    return JobHistory(DOMAIN, pending=pending, leaves=leaves)  # type: ignore[arg-type]


def average_of(*commits: GradCommit) -> AverageSet:
    """What these are summed under."""
    names = sorted(each.digest() for each in commits)
    members = tuple(AverageMember(grad_commit=name, weight=1) for name in names)
    return AverageSet(
        job=JOB.spec.job(), step=commits[0].step, step_close=ZERO_DIGEST, members=members
    )


def report_on(subject: GradCommit | AveragedChunk) -> AuditReport:
    """What bob says of it."""
    return AuditReport(
        job=JOB.spec.job(), step=StepNumber(1), stage=StageIndex(0), auditor=peer("bob"),
        subject=subject.digest(), attempt=0, distances=(), projections=(), verdict="match",
    )  # fmt: skip


def test_beside__drawn_work_of_three_stages__units_next_door_and_parts_of_our_own() -> None:
    ann, bob, cem = commit_of("ann", 0), commit_of("bob", 1), commit_of("cem", 2)
    index = sealed({ann: (1, 2), bob: (2, 3), cem: (4,)})
    names = [each.digest() for each in (ann, bob, cem)]

    units, commits = index.beside(StageIndex(0), CHUNKING, names)

    assert units == {1, 2, 3}
    assert commits == {ann.digest()}


def test_beside__shared_chunk__parts_of_the_last_stage_too() -> None:
    ann, cem = commit_of("ann", 0, parts=2), commit_of("cem", 2, parts=2)
    index = sealed({ann: (1,), cem: (4,)})

    units, commits = index.beside(StageIndex(0), TIED, [cem.digest()])

    assert not units and commits == {cem.digest()}


def test_beside__drawn_sum__all_parts_of_it_and_no_unit() -> None:
    ann, bob, cem = commit_of("ann", 0), commit_of("bob", 0), commit_of("cem", 1)
    chunk = JOB.chunk("ann")
    index = sealed({ann: (1,), bob: (2,), cem: (3,)}, average_of(ann, bob, cem), chunk)

    units, commits = index.beside(StageIndex(0), CHUNKING, [chunk.digest()])

    assert units == set() and {ann.digest(), bob.digest()} <= commits
    assert not any(index.beside(StageIndex(1), CHUNKING, [chunk.digest()]))


def test_beside__work_that_is_not_known__not_found() -> None:
    with pytest.raises(NotFound):
        sealed({}).beside(StageIndex(0), CHUNKING, [make_digest("nothing")])


def odd_one(name: str) -> GradCommit:
    """Somebody's GradCommit on a state of its own."""
    return commit_of(name, 0).model_copy(update={"state_root": make_digest("odd")})


def test_state_of__another_root_than_two_owners_have_in_the_step__is_theirs() -> None:
    ann, bob, odd = commit_of("ann", 0), commit_of("bob", 0), odd_one("cem")
    index = sealed({ann: (1,), bob: (2,), odd: (3,)})

    assert index.state_of(odd, JOB.leases) == index.state_of(ann, JOB.leases) == ann.state_root


def test_state_of__members_differ__is_what_two_owners_have_in_the_next_sum() -> None:
    ann, odd = commit_of("ann", 0), odd_one("cem")
    index = sealed({ann: (1,), odd: (3,)})
    later = [
        commit_of(each, 0).model_copy(update={"step": StepNumber(2)}) for each in ("ann", "bob")
    ]

    assert index.state_of(odd, JOB.leases) is index.state_of(ann, JOB.leases) is None
    index.note(under({later[0]: (1,), later[1]: (2,)}, average_of(*later)))
    assert index.state_of(odd, JOB.leases) == index.state_of(ann, JOB.leases) == ann.state_root


def test_state_of__nobody_of_another_owner_says_who_is_right__is_what_it_says() -> None:
    ann, odd = commit_of("ann", 0), odd_one("bob")
    alone, two = sealed({odd: (1,)}), sealed({odd: (1,), ann: (2,)}, average_of(ann))

    assert alone.state_of(odd, JOB.leases) == odd.state_root
    assert two.state_of(odd, JOB.leases) == odd.state_root


def test_find_work__by_its_name_or_by_a_report_on_it__is_that_work() -> None:
    ann = commit_of("ann", 0)
    report = report_on(ann)
    index = sealed({ann: (1,)}, report)

    for name in (ann.digest(), report.digest()):
        found = index.find_work(name)
        assert found is not None and found.commit == ann
    assert index.find_mean(ann.digest()) is None
    assert index.find_work(make_digest("nothing")) is None


def test_find_mean__by_its_name_or_by_a_report_on_it__is_that_sum() -> None:
    bob, chunk = commit_of("bob", 0), JOB.chunk("ann")
    report = report_on(chunk)
    index = sealed({bob: (1,)}, average_of(bob), chunk, report)

    for name in (chunk.digest(), report.digest()):
        found = index.find_mean(name)
        assert found is not None and found.chunk == chunk
        assert index.doer_of(name) == peer("ann")
    assert index.find_work(report.digest()) is None


def close_of(revision: int, **units: tuple[int, ...]) -> StepClose:
    """A StepClose of step 1 that gives these units of stage 0."""
    moment = UnixMillis(1)
    return StepClose(
        job=commit_of("ann", 0).job,
        step=StepNumber(1),
        revision=revision,
        assignments=tuple(
            Assignment(stage=StageIndex(0), peer=peer(name), units=tuple(map(ItemNumber, own)))
            for name, own in units.items()
        ),
        closed_at=moment,
        commit_ends=moment,
        exchange_ends=moment,
    )


def test_commit__some_units_were_anothers_in_an_earlier_close__they_are_taken_over() -> None:
    first, second = close_of(0, ann=(1, 2), bob=(3,)), close_of(1, bob=(1, 2, 3))
    ann = commit_of("ann", 0).model_copy(update={"step_close": first.digest()})
    bob = commit_of("bob", 0).model_copy(update={"step_close": second.digest()})
    index = sealed({ann: (1, 2), bob: (1, 2, 3)}, first, second)

    assert index.commit(bob.digest()).taken_over == {1, 2}
    assert not index.commit(ann.digest()).taken_over
