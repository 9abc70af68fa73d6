"""When a seal may name averaged chunks, by who holds them."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.terms.ids import Address, ChunkIndex, PeerId, StageIndex, StepNumber
from tests.unit.training.swarm.factories import (
    A,
    B,
    C,
    D,
    Swarm,
    averaged_chunk,
    duty_of,
    joining,
    owner_of,
    terms,
)
from training.swarm.duties import HoldChunks, SumChunks, next_deadline
from training.swarm.events import (
    ChunkAveraged,
    EndedWithoutUpdate,
    MeansKept,
    MeansWithheld,
    PartsDenied,
    PeerLeaving,
    PeerLost,
    PeerReturned,
)
from training.swarm.securing import HOLD, LOST, held_by_one
from training.swarm.state import Averaging, Sealing, Terms

THIRDS = {A: range(2), B: range(2, 4), C: range(4, 6)}
CHUNK_OF_C = (StageIndex(0), ChunkIndex(2))
NOBODY: Mapping[PeerId, Address] = {}


def slow_exchange(steps: int = 3) -> Terms:
    """As `terms`, with a minute for the chunks."""
    return replace(terms(steps=steps), exchange_timeout=60_000)


def averaged(of: Terms, owners: Mapping[PeerId, Address] = NOBODY) -> Swarm:
    """Three peers of three owners; each has averaged a chunk, and holds no other."""
    swarm = Swarm(of)
    for peer in THIRDS:
        swarm.tell(joining(peer, owner=owners.get(peer), at=swarm.now))
    average_step(swarm)
    return swarm


def average_step(swarm: Swarm, *, only: bool = False) -> None:
    """All three work, and average a chunk each; `only`: up to the AverageSet."""
    swarm.work_all(THIRDS)
    swarm.commit(*THIRDS)
    swarm.hold(*THIRDS)
    if not only:
        swarm.average_only(*THIRDS)
    assert isinstance(swarm.state.phase, Averaging)


def barren(swarm: Swarm) -> bool:
    return isinstance(swarm.state.phase, Sealing) and not swarm.state.phase.has_update


def test_seal__everybody_holds_all_chunks__is_due_at_once() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    assert isinstance(duty_of(swarm.state, C), HoldChunks)
    assert isinstance(swarm.state.phase, Averaging)

    swarm.hold_chunks(C)

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__one_takes_long_and_two_owners_hold_all__waits_five_seconds() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    assert next_deadline(swarm.state) == swarm.at + HOLD

    swarm.wait(HOLD - 1)
    assert isinstance(swarm.state.phase, Averaging)
    swarm.wait(1)

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__one_owner_alone_says_to_hold_all__its_word_is_not_enough() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A)
    assert held_by_one(swarm.state) == {(0, 0)}  # who averaged the others says to hold them

    swarm.wait(59_999)
    assert isinstance(swarm.state.phase, Averaging)
    swarm.wait(1)

    assert barren(swarm)


def test_seal__coordinator_has_what_one_owner_holds__comes_when_the_others_had_their_time() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A)
    swarm.tell(MeansKept(swarm.state.step, ((StageIndex(0), ChunkIndex(0)),), swarm.at))

    swarm.wait(HOLD - 1)
    assert isinstance(swarm.state.phase, Averaging)
    assert isinstance(duty_of(swarm.state, B), HoldChunks)
    swarm.wait(1)

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__coordinator_had_a_mean_that_was_withdrawn__another_one_does_not_count() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    swarm.tell(MeansKept(swarm.state.step, (CHUNK_OF_C,), swarm.at))
    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))
    swarm.tell(ChunkAveraged(averaged_chunk(A, swarm.phase(Averaging).average, 2), swarm.at))

    swarm.wait(HOLD)

    assert isinstance(swarm.state.phase, Averaging)


def test_seal__several_peers_of_one_owner_hold_all__count_once() -> None:
    swarm = averaged(slow_exchange(), owners={B: owner_of(A)})
    swarm.hold_chunks(A, B)

    swarm.wait(HOLD)

    assert isinstance(swarm.state.phase, Averaging)


def test_seal__only_one_owner_is_here__its_word_is_enough() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A)

    for peer in (B, C):
        swarm.tell(PeerLost(peer, swarm.at))

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__a_member_misses_it__is_not_waited_for_in_the_next_two_steps() -> None:
    swarm = Swarm(slow_exchange(steps=9))
    swarm.join(*THIRDS)
    waited = []
    for _ in range(8):
        average_step(swarm)
        swarm.hold_chunks(A, B)
        waited.append(isinstance(swarm.state.phase, Averaging))
        swarm.wait(HOLD)
        swarm.seal()

    assert waited == [True, False, False, True, False, False, False, False]


def test_withheld__mean_is_nowhere__its_holders_do_not_count_and_another_sums_it() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(C)  # what it says of the others' chunks stands

    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))

    assert isinstance(swarm.state.phase, Averaging)
    assert CHUNK_OF_C not in swarm.state.phase.chunks
    (summing,) = [p for p in THIRDS if isinstance(duty_of(swarm.state, p), SumChunks)]
    assert summing != C
    swarm.tell(ChunkAveraged(averaged_chunk(summing, swarm.state.phase.average, 2), swarm.at))
    swarm.hold_chunks(A, B)
    swarm.wait(HOLD)
    assert isinstance(swarm.state.phase, Sealing)


def test_withheld__after_the_time_for_sums__lapses_at_once() -> None:
    swarm = averaged(slow_exchange())
    chunk, _ = swarm.phase(Averaging).chunks[CHUNK_OF_C]
    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))
    swarm.now += 50_000
    swarm.tell(ChunkAveraged(chunk, swarm.at))
    swarm.wait(30_000)  # the others do not hold it yet
    assert isinstance(swarm.state.phase, Averaging)

    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))

    assert barren(swarm)


def test_withheld__its_signer_sums_nothing_in_the_next_two_steps() -> None:
    swarm = averaged(slow_exchange(steps=9))
    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))
    swarm.average(A, B)
    swarm.seal()

    sums = []
    for _ in range(3):
        average_step(swarm, only=True)
        sums.append(isinstance(duty_of(swarm.state, C), SumChunks))
        swarm.average(*THIRDS)
        swarm.seal()

    assert sums == [False, False, True]


def test_withheld__its_signer_leaves_and_comes_under_another_lease__sums_nothing_either() -> None:
    swarm = averaged(slow_exchange(steps=9))
    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))
    swarm.average(A, B)
    swarm.seal()
    swarm.tell(PeerLeaving(C, swarm.at))
    assert C not in swarm.state.members

    swarm.tell(joining(D, owner=owner_of(C), at=swarm.now, applied=1))
    for doer, units in {A: range(2), B: range(2, 4), D: range(4, 6)}.items():
        swarm.work(doer, *units)
    swarm.commit(A, B, D)
    swarm.hold(A, B, D)

    assert {*swarm.phase(Averaging).dealt.values()} == {A, B}


def test_denied__one_that_sums_in_anothers_place_lacks_a_part__is_not_blamed() -> None:
    swarm = averaged(slow_exchange())
    swarm.tell(MeansWithheld(swarm.state.step, C, (CHUNK_OF_C,), swarm.at))

    for peer in (A, B):
        swarm.tell(PartsDenied(swarm.state.step, peer, swarm.at))

    assert {*swarm.state.summing} == {owner_of(C)}


def test_denied__one_does_not_sum_what_was_dealt_to_it__is_blamed() -> None:
    swarm = Swarm(slow_exchange())
    swarm.join(*THIRDS)
    average_step(swarm, only=True)

    swarm.tell(PartsDenied(swarm.state.step, B, swarm.at))

    assert {*swarm.state.summing} == {owner_of(B)}


def test_pause__steps_lapse_by_owners_who_are_told_by_it__does_not_begin() -> None:
    """One after the other makes a step lapse; from then on it sums nothing."""
    swarm = Swarm(slow_exchange(steps=9))
    swarm.join(*THIRDS)
    for liar in THIRDS:
        average_step(swarm, only=True)
        assert isinstance(swarm.state.phase, Averaging)
        name = next(name for name, p in swarm.state.phase.dealt.items() if p == liar)
        swarm.tell(
            ChunkAveraged(averaged_chunk(liar, swarm.state.phase.average, name[1]), swarm.at)
        )
        swarm.tell(MeansWithheld(swarm.state.step, liar, (name,), swarm.at))
        swarm.wait(60_000)
        assert isinstance(swarm.state.phase, Sealing) and not swarm.state.phase.has_update
        swarm.seal()

    assert not swarm.state.paused


def test_pause__a_stage_has_nobody_but_who_is_told_by_it__begins() -> None:
    swarm = Swarm(slow_exchange(steps=9))
    swarm.join(A)
    lapsed = 0
    while not swarm.state.paused:
        swarm.work(A, *range(6))
        swarm.commit(A)
        swarm.hold(A)
        assert isinstance(swarm.state.phase, Averaging)
        swarm.tell(PartsDenied(swarm.state.step, A, swarm.at))
        swarm.wait(60_000)
        swarm.seal()
        lapsed += 1

    assert lapsed == 4


def test_seal__nobody_here_holds_a_chunk__lapses_at_the_deadline() -> None:
    swarm = averaged(slow_exchange())
    swarm.tell(PeerLost(C, swarm.at))
    deadline = swarm.phase(Averaging).ends

    swarm.wait(deadline - swarm.now - 1)
    assert isinstance(swarm.state.phase, Averaging)
    swarm.wait(1)

    assert barren(swarm)
    assert any(isinstance(effect, EndedWithoutUpdate) for effect in swarm.effects)


def test_seal__the_stage_had_nobody_for_a_while__that_time_does_not_count() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    for peer in THIRDS:
        swarm.tell(PeerLost(peer, swarm.at))

    swarm.wait(HOLD + 1)

    assert isinstance(swarm.state.phase, Averaging)
    for peer in (A, B):
        swarm.tell(PeerReturned(peer, "", StepNumber(0), swarm.at))
    assert isinstance(swarm.state.phase, Sealing)


def test_lapse__who_is_here_cannot_sum_and_the_holder_is_away__comes_after_four_seconds() -> None:
    swarm = averaged(slow_exchange())
    swarm.tell(PeerLost(C, swarm.at))
    for peer in (A, B):
        swarm.tell(PartsDenied(swarm.state.step, peer, swarm.at))
    assert next_deadline(swarm.state) == swarm.at + LOST

    swarm.wait(LOST - 1)
    assert isinstance(swarm.state.phase, Averaging)
    swarm.wait(1)

    assert barren(swarm)
