"""What is owed to whom, also over two stages."""

from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AveragedChunk, GradCommit
from contracts.terms.moments import UnixMillis
from tests.unit.training.swarm.factories import JOB, A, B, C, Swarm, duty_of, grad_commit, terms
from training.swarm.duties import (
    ApplySeal,
    Commit,
    FetchParts,
    SumChunks,
    missing_places,
    next_deadline,
    parts_wanted,
)
from training.swarm.events import (
    BuildSeal,
    ChunkAveraged,
    GradCommitted,
    PartsHeld,
    PeerLost,
    SealStored,
)
from training.swarm.state import Averaging, Closed, Committed, Finished, Terms
from training.swarm.step import assigned_units

FIRST, SECOND = StageIndex(0), StageIndex(1)
STAGE_OF = {A: FIRST, B: SECOND}


def committed_by_one() -> Swarm:
    swarm = Swarm(terms(peers=1))
    swarm.join(A)
    swarm.work(A, *range(6))
    swarm.commit(A)
    return swarm


def test_duty_of__stranger_or_lost_member__is_nothing() -> None:
    swarm = committed_by_one()
    assert isinstance(duty_of(swarm.state, A), FetchParts)
    assert duty_of(swarm.state, B) is None

    swarm.tell(PeerLost(A, swarm.at))

    assert duty_of(swarm.state, A) is None


def test_parts_wanted__stage_has_nobody__is_unknown() -> None:
    swarm = committed_by_one()

    swarm.tell(PeerLost(A, swarm.at))

    assert parts_wanted(swarm.state) is None


def test_duty_of__job_finished__hands_the_last_seal_and_waits_for_no_time() -> None:
    swarm = Swarm(terms(peers=1, steps=1))
    swarm.join(A)
    swarm.work(A, *range(6))
    swarm.commit(A)
    swarm.hold(A)
    swarm.average(A)
    swarm.tell(SealStored(StepNumber(1), True, swarm.at))

    assert isinstance(swarm.state.phase, Finished)
    assert duty_of(swarm.state, A) == ApplySeal(StepNumber(1))
    assert next_deadline(swarm.state) is None


def test_duty_of__member_that_joined_during_the_step__owes_no_commit() -> None:
    swarm = Swarm(terms(peers=1))
    swarm.join(A, B)
    swarm.work(A, *range(6))

    assert isinstance(duty_of(swarm.state, A), Commit)
    assert duty_of(swarm.state, B) is None


def two_stages(*, is_tied: bool = False) -> Swarm:
    swarm = Swarm(Terms(JOB, 2, 3, 2, 2, 1, 1000, 1000, 10_000, 10_000, is_tied=is_tied))
    for peer, stage in STAGE_OF.items():
        swarm.join(peer, stage=stage)
    return swarm


def work_in(swarm: Swarm, stage: StageIndex, *units: int) -> None:
    peer = next(peer for peer, own in STAGE_OF.items() if own == stage)
    swarm.work(peer, *units, stage=stage)


def commit_in(swarm: Swarm) -> list[GradCommit]:
    assert isinstance(swarm.state.phase, Closed)
    close, commits = swarm.state.phase.close, []
    for peer, stage in STAGE_OF.items():
        units = assigned_units(close, stage, peer)
        commit = grad_commit(peer, close, units).model_copy(update={"stage": stage})
        commits.append(commit)
        swarm.tell(GradCommitted(commit, units, swarm.at))
    return commits


def test_two_stages__one_stage_has_done_all_units__step_does_not_close() -> None:
    swarm = two_stages()

    work_in(swarm, FIRST, 0, 1, 2)

    assert missing_places(swarm.state) == tuple((SECOND, UnitId(unit)) for unit in range(3))


def test_parts_wanted__tied_head__who_sums_a_shared_chunk_holds_the_last_stages_parts_too() -> None:
    swarm = two_stages(is_tied=True)
    work_in(swarm, FIRST, 0, 1, 2)
    work_in(swarm, SECOND, 0, 1, 2)
    first, last = (commit.digest() for commit in commit_in(swarm))

    wanted = parts_wanted(swarm.state)

    own = {(A, (first, ChunkIndex(n))) for n in range(4)}
    own |= {(B, (last, ChunkIndex(n))) for n in range(2)}
    assert wanted is not None
    assert set(wanted) == own | {(A, (last, ChunkIndex(n))) for n in (2, 3)}


def test_duty_of__tied_head__the_first_stage_alone_sums_what_both_share() -> None:
    swarm = two_stages(is_tied=True)
    work_in(swarm, FIRST, 0, 1, 2)
    work_in(swarm, SECOND, 0, 1, 2)
    commit_in(swarm)
    for peer in STAGE_OF:
        duty = duty_of(swarm.state, peer)
        assert isinstance(duty, FetchParts)
        swarm.tell(PartsHeld(StepNumber(1), peer, duty.parts, swarm.at))

    first, last = (duty_of(swarm.state, peer) for peer in (A, B))

    assert isinstance(first, SumChunks) and isinstance(last, SumChunks)
    assert first.chunks == tuple((FIRST, ChunkIndex(n)) for n in range(4))
    assert last.chunks == tuple((SECOND, ChunkIndex(n)) for n in range(2))


def test_two_stages__whole_step__equal_units_in_both_and_every_chunk_of_both() -> None:
    swarm = two_stages()
    work_in(swarm, SECOND, 0, 1, 2)
    work_in(swarm, FIRST, 2, 1, 0)
    assert isinstance(swarm.state.phase, Closed)
    close = swarm.state.phase.close
    commits = commit_in(swarm)

    assert isinstance(swarm.state.phase, Committed)
    wanted = parts_wanted(swarm.state)
    for peer in STAGE_OF:
        duty = duty_of(swarm.state, peer)
        assert isinstance(duty, FetchParts)
        swarm.tell(PartsHeld(StepNumber(1), peer, duty.parts, swarm.at))
    assert isinstance(swarm.state.phase, Averaging)
    average = swarm.state.phase.average
    duties = {peer: duty_of(swarm.state, peer) for peer in STAGE_OF}
    for peer, stage in STAGE_OF.items():
        for chunk in range(2):
            message = AveragedChunk(
                job=JOB,
                step=StepNumber(1),
                stage=stage,
                peer=peer,
                average_set=average.digest(),
                chunk=ChunkIndex(chunk),
                chunk_digest=ZERO_DIGEST,
                norm_squared=1,
            )
            swarm.tell(ChunkAveraged(message, swarm.at))

    assert assigned_units(close, FIRST, A) == assigned_units(close, SECOND, B) == (0, 1, 2)
    assert wanted is not None
    assert len(wanted) == 4  # each chunk of each stage, and no deputy where there is one peer
    assert {member.grad_commit for member in average.members} == {c.digest() for c in commits}
    assert duties == {
        A: SumChunks(average, ((FIRST, ChunkIndex(0)), (FIRST, ChunkIndex(1)))),
        B: SumChunks(average, ((SECOND, ChunkIndex(0)), (SECOND, ChunkIndex(1)))),
    }
    assert swarm.effects[-1] == BuildSeal(StepNumber(1), last=False)
    assert C not in swarm.state.members


def test_next_deadline__redo_was_due_and_nobody_could_do_it__is_not_due_again() -> None:
    swarm = Swarm(terms(peers=1))
    swarm.join(A)
    swarm.work(A, *range(6))
    swarm.tell(PeerLost(A, swarm.at))
    redo = UnixMillis(swarm.now + swarm.terms.redo_after)
    assert next_deadline(swarm.state) == redo

    grace = swarm.now + swarm.terms.lease_grace
    assert next_deadline(swarm.state, after=redo) == grace
    assert next_deadline(swarm.state, after=UnixMillis(grace)) is None
