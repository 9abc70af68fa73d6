"""The step as a state machine, one decision a test."""

from contracts.terms.digest import digest
from contracts.terms.ids import Digest, StepNumber
from contracts.terms.items import ItemNumber
from tests.unit.training.swarm.factories import HALVES, STAGE, A, B, C, Swarm, copy, duty_of, terms
from training.swarm.duties import (
    ApplySeal,
    Commit,
    FetchParts,
    SumChunks,
    missing_places,
    next_deadline,
    parts_wanted,
    workers_of,
)
from training.swarm.events import (
    BuildSeal,
    EndedWithoutUpdate,
    GradCommitted,
    PauseJob,
    PeerLost,
    PeerReturned,
    Redo,
    Resumed,
    SealApplied,
    SendAverageSet,
    SendNotice,
    SendStepClose,
    Ticked,
    UnitsDone,
    UnitsLacked,
)
from training.swarm.state import Averaging, Closed, Committed, Sealing
from training.swarm.step import advance, assigned_units


def two_at_work() -> Swarm:
    swarm = Swarm(terms(peers=2))
    swarm.join(A, B)
    return swarm


def closed() -> Swarm:
    swarm = two_at_work()
    swarm.work_all(HALVES)
    return swarm


def committed() -> Swarm:
    swarm = closed()
    swarm.commit(A, B)
    return swarm


def test_advance__every_unit_done__closes_with_each_unit_once() -> None:
    swarm = two_at_work()
    swarm.work(B, 5, 1, 3)

    swarm.work(A, 0, 1, 2, 4)

    (effect,) = [e for e in swarm.effects if isinstance(e, SendStepClose)]
    assert assigned_units(effect.message, STAGE, A) == (0, 2, 4)
    assert assigned_units(effect.message, STAGE, B) == (1, 3, 5)
    assert isinstance(swarm.state.phase, Closed)


def test_advance__unit_of_a_stranger_or_out_of_range__changes_nothing() -> None:
    swarm = two_at_work()
    before = swarm.state

    swarm.work(C, 0)
    swarm.work(A, 6)
    swarm.tell(UnitsDone(StepNumber(2), (copy(A, 0, 0),), swarm.at))

    assert swarm.state == before


def test_advance__peer_lacks_a_unit_after_the_close__revision_moves_it() -> None:
    swarm = closed()
    lacked = UnitsLacked(StepNumber(1), B, ((STAGE, ItemNumber(4)),), swarm.at)

    effects = swarm.tell(lacked)
    swarm.work(A, 4)

    assert effects == (Redo(((STAGE, ItemNumber(4)),)),)
    assert isinstance(swarm.state.phase, Closed)
    assert swarm.state.phase.close.revision == 1
    assert assigned_units(swarm.state.phase.close, STAGE, A) == (0, 1, 2, 4)


def test_advance__unit_already_committed_is_lacked__changes_nothing() -> None:
    swarm = closed()
    swarm.commit(B)
    before = swarm.state

    swarm.tell(UnitsLacked(StepNumber(1), B, ((STAGE, ItemNumber(4)),), swarm.at))

    assert swarm.state == before


def test_advance__all_commits_in__parts_are_wanted_by_summing_peers_and_deputies() -> None:
    swarm = committed()

    wanted = parts_wanted(swarm.state)

    assert wanted is not None
    names = {commit.peer: commit.digest() for commit, _ in swarm.phase(Committed).draft.commits}
    assert {part for who, part in wanted if who == A} == {
        (names[A], 0), (names[B], 0), (names[A], 2), (names[B], 2), (names[B], 1),
    }  # fmt: skip


def test_advance__commit_that_names_other_units__is_ignored() -> None:
    swarm = closed()
    close = swarm.phase(Closed).close
    swarm.commit(A)
    before = swarm.state

    commit, units = swarm.commitment(B, close)
    swarm.tell(GradCommitted(commit, (*units, ItemNumber(0)), swarm.at))

    assert swarm.state == before


def test_advance__one_computed_in_another_state_and_said_so_first__is_left_out() -> None:
    swarm = Swarm(terms(peers=3, units=3))
    swarm.join(A, B, C)
    for unit, doer in enumerate((A, B, C)):
        swarm.work(doer, unit)
    assert isinstance(swarm.state.phase, Closed)
    close = swarm.state.phase.close
    other = Digest(digest("test", b"another state"))
    swarm.tell(GradCommitted(*swarm.commitment(C, close, state_root=other), swarm.at))
    swarm.commit(A)

    effects = swarm.tell(GradCommitted(*swarm.commitment(B, close), swarm.at))

    assert effects == (Redo(((STAGE, ItemNumber(2)),)),)
    assert {copy.peer for copy in swarm.state.phase.draft.done.values()} == {A, B}


def test_advance__commit_too_late__others_redo_its_units_in_a_further_round() -> None:
    swarm = closed()
    swarm.commit(A)

    effects = swarm.wait(1000)
    swarm.work(A, 3, 4, 5)
    swarm.commit(A)

    assert effects == (Redo(tuple((STAGE, ItemNumber(unit)) for unit in (3, 4, 5))),)
    assert workers_of(swarm.state, STAGE) != ()
    rounds = [(c.peer, c.round, units) for c, units in swarm.phase(Committed).draft.commits]
    assert rounds == [(A, 0, (0, 1, 2)), (A, 1, (3, 4, 5))]


def test_advance__lost_before_its_commit__others_redo_its_units_long_before_the_deadline() -> None:
    swarm = Swarm(terms(peers=2, units=4))
    swarm.join(A, B)
    swarm.work(A, 0, 1)
    swarm.work(B, 2, 3)
    swarm.commit(A)
    swarm.tell(PeerLost(B, swarm.at))
    swarm.wait(swarm.terms.redo_after - 1)
    assert isinstance(swarm.state.phase, Closed)

    swarm.now += 1
    assert next_deadline(swarm.state) == swarm.now
    effects = swarm.tell(Ticked(swarm.at))

    assert effects == (Redo(((STAGE, ItemNumber(2)), (STAGE, ItemNumber(3)))),)
    assert [unit for _, unit in missing_places(swarm.state)] == [2, 3]


def test_advance__lost_before_its_commit_and_nobody_else_there__is_waited_for() -> None:
    swarm = Swarm(terms(peers=1, units=2, stages=2))
    swarm.join(A)
    swarm.join(B, stage=1)
    swarm.work(A, 0, 1)
    swarm.work(B, 0, 1, stage=1)
    swarm.tell(PeerLost(B, swarm.at))

    swarm.wait(swarm.terms.redo_after)

    assert isinstance(swarm.state.phase, Closed)


def test_advance__only_peer_commits_too_late__step_ends_without_update() -> None:
    swarm = Swarm(terms(peers=1))
    swarm.join(A)
    swarm.work(A, *range(6))

    effects = swarm.wait(1000)

    average, ended, seal = effects
    assert isinstance(average, SendAverageSet)
    assert average.message.members == ()
    assert ended == EndedWithoutUpdate(StepNumber(1))
    assert seal == BuildSeal(StepNumber(1), last=False)


def test_advance__only_peer_is_away_beyond_the_deadline__clock_stands_still() -> None:
    swarm = Swarm(terms(peers=1))
    swarm.join(A)
    swarm.work(A, *range(6))
    swarm.tell(PeerLost(A, swarm.at))

    swarm.wait(9000)
    swarm.tell(PeerReturned(A, "there", StepNumber(0), swarm.at))
    swarm.wait(999)

    assert isinstance(swarm.state.phase, Closed)
    assert next_deadline(swarm.state) == swarm.now + 1


def test_advance__coordinator_was_down_over_the_deadline__clock_stood_still() -> None:
    swarm = closed()
    swarm.now += 5_000

    swarm.tell(Resumed(swarm.at))
    swarm.tell(PeerReturned(A, "", StepNumber(0), swarm.at))
    swarm.tell(PeerReturned(B, "", StepNumber(0), swarm.at))
    swarm.tell(Ticked(swarm.at))

    assert swarm.phase(Closed).ends == swarm.now + 1000


def test_advance__away_longer_than_the_grace__leaves_and_its_units_go_out_again() -> None:
    swarm = two_at_work()
    swarm.work(B, 3)
    swarm.tell(PeerLost(B, swarm.at))

    notice, redo = swarm.wait(10_000)

    assert isinstance(notice, SendNotice)
    assert (notice.message.what, notice.message.number) == ("leave", 2)
    assert redo == Redo(((STAGE, ItemNumber(3)),))


def test_advance__peer_left_after_the_close__its_units_go_out_with_those_that_are_lacking() -> None:
    swarm = Swarm(terms(peers=1, stages=2))
    for who, stage in ((A, 0), (B, 1)):
        swarm.join(who, stage=stage)
        swarm.work(who, *range(6), stage=stage)
    swarm.tell(Resumed(swarm.at))
    swarm.wait(10_000)
    assert swarm.state.members == {}
    swarm.join(A)

    lacked = tuple((STAGE, ItemNumber(unit)) for unit in range(6))
    swarm.tell(UnitsLacked(StepNumber(1), A, lacked, swarm.at))

    assert missing_places(swarm.state) == swarm.terms.places


def test_advance__owner_gone_before_its_parts_were_fetched__its_units_are_done_again() -> None:
    swarm = committed()
    swarm.hold(A)
    swarm.tell(PeerLost(B, swarm.at))
    swarm.state, _ = advance(swarm.state, Ticked(swarm.at))
    assert isinstance(swarm.state.phase, Averaging)  # A holds every part already

    swarm = committed()
    swarm.tell(PeerLost(B, swarm.at))
    effects = swarm.wait(3000)

    assert effects == (Redo(tuple((STAGE, ItemNumber(unit)) for unit in (3, 4, 5))),)


def test_advance__summing_peer_gone__the_next_one_is_asked_for_its_chunks() -> None:
    swarm = committed()
    swarm.hold(A, B)
    before = duty_of(swarm.state, A)

    swarm.tell(PeerLost(B, swarm.at))

    after = duty_of(swarm.state, A)
    assert isinstance(before, SumChunks)
    assert isinstance(after, SumChunks)
    assert [chunk for _, chunk in before.chunks] == [0, 2]
    assert [chunk for _, chunk in after.chunks] == [0, 1, 2]


def test_advance__three_steps_without_update__job_pauses_until_a_peer_returns() -> None:
    swarm = Swarm(terms(peers=1, steps=9))
    swarm.join(A)
    for _ in range(3):
        swarm.work(A, *range(6))
        swarm.wait(1000)
        assert isinstance(swarm.state.phase, Sealing)
        swarm.seal()

    assert PauseJob() in swarm.effects
    assert missing_places(swarm.state) == ()
    swarm.tell(PeerReturned(A, "", StepNumber(3), swarm.at))
    assert len(missing_places(swarm.state)) == 6


def test_duty_of__member_behind_the_newest_seal__applies_it_before_anything_else() -> None:
    swarm = two_at_work()
    swarm.whole_step(HALVES)
    swarm.tell(PeerLost(B, swarm.at))
    swarm.tell(PeerReturned(B, "", StepNumber(0), swarm.at))

    assert duty_of(swarm.state, B) == ApplySeal(StepNumber(1))
    assert [member.peer for member in workers_of(swarm.state, STAGE)] == [A]
    swarm.tell(SealApplied(B, StepNumber(1), swarm.at))
    assert [member.peer for member in workers_of(swarm.state, STAGE)] == [A, B]


def test_duty_of__each_phase__asks_for_what_is_missing_only() -> None:
    swarm = closed()
    assert duty_of(swarm.state, A) == Commit(swarm.phase(Closed).close)

    swarm.commit(A)
    assert duty_of(swarm.state, A) is None
    swarm.commit(B)

    assert isinstance(duty_of(swarm.state, A), FetchParts)
    swarm.hold(A)
    assert duty_of(swarm.state, A) is None
    assert isinstance(duty_of(swarm.state, B), FetchParts)
