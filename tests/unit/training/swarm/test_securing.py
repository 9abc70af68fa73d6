"""When a seal may name averaged chunks, by who holds them."""

from dataclasses import replace

from contracts.terms.ids import StepNumber
from tests.unit.training.swarm.factories import A, B, C, Swarm, duty_of, terms
from training.swarm.duties import HoldChunks, next_deadline
from training.swarm.events import (
    EndedWithoutUpdate,
    PartsDenied,
    PeerLost,
    PeerReturned,
    Ticked,
)
from training.swarm.securing import HOLD, LOST
from training.swarm.state import Averaging, Sealing, Terms

THIRDS = {A: range(2), B: range(2, 4), C: range(4, 6)}


def slow_exchange() -> Terms:
    """As `terms`, with a minute for the chunks."""
    return replace(terms(), exchange_timeout=60_000)


def averaged(of: Terms) -> Swarm:
    """Three peers of three owners; each has averaged a chunk, and holds no other."""
    swarm = Swarm(of)
    swarm.join(*THIRDS)
    for doer, units in THIRDS.items():
        swarm.work(doer, *units)
    swarm.commit(*THIRDS)
    swarm.hold(*THIRDS)
    swarm.average_only(*THIRDS)
    assert isinstance(swarm.state.phase, Averaging)
    return swarm


def barren(swarm: Swarm) -> bool:
    return swarm.state.phase == Sealing(has_update=False)


def pass_time(swarm: Swarm, span: int) -> None:
    swarm.now += span
    swarm.tell(Ticked(swarm.at))


def test_seal__everybody_holds_all_chunks__is_due_at_once() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    assert isinstance(duty_of(swarm.state, C), HoldChunks)
    assert isinstance(swarm.state.phase, Averaging)

    swarm.hold_chunks(C)

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__who_does_not_hold_them_is_lost__is_not_waited_for() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)

    swarm.tell(PeerLost(C, swarm.at))

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__one_takes_long_and_two_owners_hold_all__waits_five_seconds() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    assert next_deadline(swarm.state) == swarm.at + HOLD

    pass_time(swarm, HOLD - 1)
    assert isinstance(swarm.state.phase, Averaging)
    pass_time(swarm, 1)

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__one_owner_alone_holds_all__waits_a_third_of_the_exchange() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A)

    pass_time(swarm, 19_999)
    assert isinstance(swarm.state.phase, Averaging)
    pass_time(swarm, 1)

    assert isinstance(swarm.state.phase, Sealing)


def test_seal__nobody_here_holds_a_chunk__lapses_at_the_deadline() -> None:
    swarm = averaged(slow_exchange())
    swarm.tell(PeerLost(C, swarm.at))
    assert isinstance(swarm.state.phase, Averaging)
    deadline = swarm.state.phase.ends

    pass_time(swarm, deadline - swarm.now - 1)
    assert isinstance(swarm.state.phase, Averaging)
    pass_time(swarm, 1)

    assert barren(swarm)
    assert any(isinstance(effect, EndedWithoutUpdate) for effect in swarm.effects)


def test_seal__the_stage_had_nobody_for_a_while__that_time_does_not_count() -> None:
    swarm = averaged(slow_exchange())
    swarm.hold_chunks(A, B)
    for peer in THIRDS:
        swarm.tell(PeerLost(peer, swarm.at))

    pass_time(swarm, HOLD + 1)

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

    pass_time(swarm, LOST - 1)
    assert isinstance(swarm.state.phase, Averaging)
    pass_time(swarm, 1)

    assert barren(swarm)


def test_lapse__somebody_here_may_still_sum_it__waits() -> None:
    swarm = averaged(slow_exchange())
    swarm.tell(PeerLost(C, swarm.at))
    swarm.tell(PartsDenied(swarm.state.step, A, swarm.at))

    pass_time(swarm, 2 * LOST)

    assert isinstance(swarm.state.phase, Averaging)


def test_lapse__holder_is_back_in_time__does_not_come() -> None:
    swarm = averaged(slow_exchange())
    swarm.tell(PeerLost(C, swarm.at))
    for peer in (A, B):
        swarm.tell(PartsDenied(swarm.state.step, peer, swarm.at))
    swarm.now += LOST - 1
    swarm.tell(PeerReturned(C, "", StepNumber(0), swarm.at))

    pass_time(swarm, 2 * LOST)

    assert isinstance(swarm.state.phase, Averaging)
