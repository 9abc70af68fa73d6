"""From a StepClose to the seal: commits, parts, weights, those who go."""

from dataclasses import replace

from contracts.governance.gates import FINE, Gates, PeerStep, remember
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, PeerId, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradCommit
from tests.unit.training.swarm.factories import (
    STAGE,
    A,
    B,
    C,
    Swarm,
    averaged_chunk,
    duty_of,
    grad_commit,
    joining,
    owner_of,
    peer,
    terms,
)
from training.swarm.closing import assigned_units
from training.swarm.duties import SumChunks, next_deadline, workers_of
from training.swarm.events import (
    BuildSeal,
    ChunkAveraged,
    EndedWithoutUpdate,
    GradCommitted,
    LinkBroken,
    PartsDenied,
    PartsHeld,
    PeerLeaving,
    PeerLost,
    PeerReturned,
    Redo,
    SealApplied,
    SealStored,
    SendNotice,
    StopAsked,
    Ticked,
    UnitsLacked,
)
from training.swarm.state import Averaging, Closed, Committed, Part, Working

SHARES = {A: (0, 1), B: (2, 3), C: (4, 5)}


def three() -> Swarm:
    swarm = Swarm(terms(peers=3))
    swarm.join(A, B, C)
    return swarm


def closed() -> Swarm:
    swarm = three()
    swarm.work_all(SHARES)
    return swarm


def committed() -> Swarm:
    swarm = closed()
    swarm.commit(A, B, C)
    return swarm


def parts_of(swarm: Swarm, owner: PeerId) -> tuple[Part, ...]:
    commits = [c for c, _ in swarm.phase(Committed).draft.commits if c.peer == owner]
    return tuple(
        (c.digest(), ChunkIndex(chunk)) for c in commits for chunk in range(swarm.terms.num_chunks)
    )


def test_take_commit__while_others_units_are_done_again__counts() -> None:
    swarm = closed()
    close = swarm.phase(Closed).close
    units = assigned_units(close, STAGE, A)
    swarm.tell(UnitsLacked(StepNumber(1), B, ((STAGE, ItemNumber(2)),), swarm.at))

    swarm.tell(GradCommitted(grad_commit(A, close, units), units, swarm.at))

    assert swarm.phase(Working).draft.committed(STAGE, A) == {0, 1}


def test_parts_denied__after_the_relay__summing_peer_is_replaced_and_the_sender_stays() -> None:
    swarm = committed()

    swarm.tell(PartsDenied(StepNumber(1), B, swarm.at))
    swarm.hold(A, C)

    assert len(swarm.phase(Averaging).average.members) == 3
    duties = [duty_of(swarm.state, each) for each in (A, B, C)]
    summed = [
        sorted(chunk for _, chunk in duty.chunks) if isinstance(duty, SumChunks) else []
        for duty in duties
    ]
    assert summed[1] == []
    assert sorted(summed[0] + summed[2]) == [0, 1, 2]


def test_parts_denied__comes_again__deadline_moves_once() -> None:
    swarm = committed()
    swarm.now += 1500
    swarm.tell(PartsDenied(StepNumber(1), B, swarm.at))
    before = swarm.state
    assert isinstance(before.phase, Committed)
    assert before.phase.ends == swarm.now + 2000

    swarm.now += 100
    assert swarm.tell(PartsDenied(StepNumber(1), B, swarm.at)) == ()
    assert swarm.state.phase == before.phase


def averaging() -> Swarm:
    """The AverageSet is out, and one of three chunks is averaged."""
    swarm = committed()
    swarm.hold(A, B, C)
    average = swarm.phase(Averaging).average
    swarm.tell(ChunkAveraged(averaged_chunk(A, average, 0), swarm.at))
    return swarm


WITHOUT_UPDATE = (EndedWithoutUpdate(StepNumber(1)), BuildSeal(StepNumber(1), last=False))


def test_lapse__chunk_is_missing_at_the_deadline__ends_without_it_even_if_it_comes_late() -> None:
    swarm = averaging()
    late = averaged_chunk(B, swarm.phase(Averaging).average, 1)

    swarm.now = swarm.phase(Averaging).ends - 1
    assert swarm.tell(Ticked(swarm.at)) == ()
    swarm.now += 1

    assert swarm.tell(Ticked(swarm.at)) == WITHOUT_UPDATE
    assert swarm.state.gates == Gates()
    before = swarm.state
    assert swarm.tell(ChunkAveraged(late, swarm.at)) == () and swarm.state == before
    swarm.seal()
    assert swarm.state.barren == 1


def test_lapse__stage_was_empty_for_a_while__deadline_moves_by_that() -> None:
    swarm = averaging()
    ends = swarm.phase(Averaging).ends
    for each in (A, B, C):
        swarm.tell(PeerLost(each, swarm.at))
    swarm.now += 5000
    assert swarm.tell(Ticked(swarm.at)) == ()

    swarm.tell(PeerReturned(A, "", StepNumber(0), swarm.at))

    assert swarm.phase(Averaging).ends == ends + 5000


def test_lapse__job_is_to_stop_and_a_stage_is_empty__ends_at_once() -> None:
    swarm = averaging()
    for each in (A, B, C):
        swarm.tell(PeerLost(each, swarm.at))

    effects = swarm.tell(StopAsked(swarm.at))

    assert effects == (WITHOUT_UPDATE[0], BuildSeal(StepNumber(1), last=True))


def late_exchange(swarm: Swarm) -> tuple[object, ...]:
    swarm.now = swarm.phase(Committed).ends
    return swarm.tell(Ticked(swarm.at))


def test_exchange_is_late__summing_peer_says_nothing__is_replaced_and_nobody_is_struck() -> None:
    swarm = committed()
    swarm.hold(A, C)

    late_exchange(swarm)

    assert isinstance(swarm.state.phase, Averaging)
    assert swarm.state.phase.draft.denied == {B}
    assert swarm.state.phase.draft.struck == frozenset()


def test_exchange_is_late__owner_serves_nobody__is_struck() -> None:
    swarm = committed()
    for who in (A, C):
        parts = tuple(part for owner in (A, C) for part in parts_of(swarm, owner))
        swarm.tell(PartsHeld(StepNumber(1), who, parts, swarm.at))

    effects = late_exchange(swarm)

    assert effects == (Redo(((STAGE, ItemNumber(2)), (STAGE, ItemNumber(3)))),)


def test_exchange_is_late__part_was_served_to_another__who_lacks_it_is_replaced() -> None:
    swarm = committed()
    everything = tuple(part for owner in (A, B, C) for part in parts_of(swarm, owner))
    relayed = peer("k")  # the coordinator itself has fetched them
    swarm.tell(PartsHeld(StepNumber(1), relayed, everything, swarm.at))
    swarm.tell(PartsHeld(StepNumber(1), B, parts_of(swarm, B), swarm.at))
    swarm.hold(A, C)

    late_exchange(swarm)

    assert swarm.phase(Averaging).draft.denied == {B}


def test_exchange_is_late__nobody_ever_answers__step_ends_without_update() -> None:
    swarm = committed()

    assert late_exchange(swarm) == ()
    effects = late_exchange(swarm)

    assert EndedWithoutUpdate(StepNumber(1)) in effects


def gradients(swarm: Swarm, squared: dict[PeerId, int]) -> None:
    close = swarm.phase(Closed).close
    for who, norm_squared in squared.items():
        units = assigned_units(close, STAGE, who)
        commit: GradCommit = grad_commit(who, close, units, norm_squared=norm_squared)
        swarm.tell(GradCommitted(commit, units, swarm.at))


def weights_in(step: int) -> dict[PeerId, int]:
    """Weights in a step whose third gradient is ten times as long as all before and beside it."""
    swarm = Swarm(terms(peers=3, steps=30))
    for who in SHARES:
        swarm.tell(joining(who, applied=step - 1, at=swarm.now))
    gates = Gates()
    for _ in range(step - 1):
        gates = remember(gates, [usual(who) for who in SHARES])
    swarm.state = replace(swarm.state, step=StepNumber(step), gates=gates)
    swarm.work_all(SHARES)
    gradients(swarm, {A: 10**12, B: 10**12, C: 100 * 10**12})
    swarm.hold(A, B, C)
    assert isinstance(swarm.state.phase, Averaging)
    names = {c.digest(): c.peer for c, _ in swarm.state.phase.draft.commits}
    return {names[m.grad_commit]: m.weight for m in swarm.state.phase.average.members}


def usual(who: PeerId) -> PeerStep:
    return PeerStep(ZERO_DIGEST, STAGE, owner_of(who), samples=4, norm=10**9)


def test_average__one_gradient_ten_times_too_long__weighs_less_after_25_steps() -> None:
    assert weights_in(25) == {A: 4, B: 4, C: 4}
    assert weights_in(26) == {A: 4 * FINE, B: 4 * FINE, C: 4 * FINE * 3 // 10}


def notices(swarm: Swarm) -> list[tuple[str, PeerId, int]]:
    found = [e.message for e in swarm.effects if isinstance(e, SendNotice)]
    return [(each.what, each.peer, each.step) for each in found if each.what == "leave"]


def test_leaving__peer_with_work_in_this_step__stays_until_its_seal_is_applied() -> None:
    swarm = three()
    swarm.work(B, 2, 3)

    swarm.tell(PeerLeaving(B, swarm.at))
    assert [member.peer for member in workers_of(swarm.state, STAGE)] == [A, C]
    assert notices(swarm) == []
    swarm.work(A, 0, 1, 4, 5)
    swarm.commit(A, B)
    swarm.hold(A, B)
    swarm.average(A, B)
    assert notices(swarm) == []
    swarm.seal()

    assert notices(swarm) == [("leave", B, 2)]
    assert B not in swarm.state.members


def lagging() -> Swarm:
    """A step by A and B, sealed; C, though it is here, does not apply the seal."""
    swarm = three()
    swarm.work(A, 0, 1, 2)
    swarm.work(B, 3, 4, 5)
    swarm.commit(A, B)
    swarm.hold(A, B)
    swarm.average(A, B)
    step = swarm.state.step
    swarm.tell(SealStored(step, False, swarm.at))
    for each in (A, B):
        swarm.tell(SealApplied(each, step, swarm.at))
    return swarm


def test_leaving__a_member_lags_for_ever__goes_when_one_who_is_away_would_have() -> None:
    swarm = lagging()
    swarm.tell(PeerLeaving(B, swarm.at))
    swarm.now += 5_000
    swarm.tell(PeerLeaving(B, swarm.at))  # a leaver asks again and again
    assert notices(swarm) == []
    assert next_deadline(swarm.state) == swarm.now + 5_000

    swarm.wait(5_000)

    assert notices(swarm) == [("leave", B, 2)]


def test_leaving__has_work_that_a_laggard_lets_nobody_seal__goes_without_it() -> None:
    swarm = lagging()
    swarm.work(B, 3, 4)
    for each in (A, B):
        swarm.tell(PeerLeaving(each, swarm.at))

    swarm.wait(10_000)

    assert notices(swarm) == [("leave", A, 2), ("leave", B, 2)]


def test_leaving__has_work_and_others_do_the_rest__waits_for_its_seal_however_long() -> None:
    swarm = lagging()
    swarm.work(B, 3, 4)
    swarm.tell(PeerLeaving(B, swarm.at))

    swarm.wait(60_000)

    assert notices(swarm) == []


def test_without_overdue__member_had_committed__its_work_still_counts() -> None:
    swarm = closed()
    swarm.commit(A)
    swarm.tell(UnitsLacked(StepNumber(1), B, ((STAGE, ItemNumber(2)),), swarm.at))
    swarm.tell(PeerLost(A, swarm.at))

    effects = swarm.wait(10_000)

    assert notices(swarm) == [("leave", A, 1)]
    assert not any(isinstance(effect, Redo) for effect in effects)
    assert swarm.phase(Working).draft.done[STAGE, ItemNumber(0)].peer == A


def test_redo__who_was_to_do_it_is_gone_and_all_others_are_struck__ends_without_update() -> None:
    swarm = Swarm(terms(peers=2, steps=3))
    swarm.join(A, B)
    swarm.work(A, 0, 1, 2)
    swarm.work(B, 3, 4, 5)
    swarm.tell(LinkBroken(StepNumber(1), A, swarm.at))
    swarm.work(B, 0, 1, 2)
    assert isinstance(swarm.state.phase, Closed)
    lacking = tuple((STAGE, ItemNumber(unit)) for unit in range(6))
    swarm.tell(UnitsLacked(StepNumber(1), B, lacking, swarm.at))  # no deadline: B does them again
    swarm.tell(PeerLost(B, swarm.at))
    assert isinstance(swarm.state.phase, Working)

    effects = swarm.wait(swarm.state.terms.lease_grace)

    assert EndedWithoutUpdate(StepNumber(1)) in effects
