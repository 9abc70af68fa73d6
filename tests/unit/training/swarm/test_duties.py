"""What is owed to whom, also over two stages."""

from contracts.terms.ids import ChunkIndex, StageIndex, StepNumber
from contracts.terms.messages import GradCommit
from contracts.terms.moments import UnixMillis
from tests.unit.training.swarm.factories import JOB, A, B, Swarm, duty_of, grad_commit, terms
from training.swarm.duties import (
    ApplySeal,
    Commit,
    FetchParts,
    SumChunks,
    next_deadline,
    parts_wanted,
)
from training.swarm.events import GradCommitted, PartsHeld, PeerLost, SealStored
from training.swarm.state import Closed, Finished, Terms
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
    close, commits = swarm.phase(Closed).close, []
    for peer, stage in STAGE_OF.items():
        units = assigned_units(close, stage, peer)
        commit = grad_commit(peer, close, units).model_copy(update={"stage": stage})
        commits.append(commit)
        swarm.tell(GradCommitted(commit, units, swarm.at))
    return commits


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
