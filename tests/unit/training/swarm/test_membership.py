"""Who is a member, and how events are kept."""

from dataclasses import replace

import pytest

from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.ids import StepNumber
from tests.unit.training.swarm.factories import (
    STAGE,
    A,
    B,
    C,
    Swarm,
    joining,
    owner_of,
    peer,
    terms,
)
from training.swarm.duties import next_deadline
from training.swarm.events import PeerLost, PeerReturned, Resumed
from training.swarm.journaled import decode_event
from training.swarm.membership import stage_for_newcomer, state_step_for
from training.swarm.state import Finished

D = peer("d")


def test_returned__within_the_grace__same_member_at_its_new_address() -> None:
    swarm = Swarm(terms(peers=1))
    swarm.join(A)
    num_effects = len(swarm.effects)

    swarm.tell(PeerLost(A, swarm.at))
    swarm.wait(9_999)
    swarm.tell(PeerReturned(A, "elsewhere", StepNumber(0), swarm.at))

    assert len(swarm.effects) == num_effects
    assert swarm.state.members[A].address == "elsewhere"
    assert swarm.state.members[A].is_here


def test_lost_or_returned__stranger__changes_nothing() -> None:
    swarm = Swarm(terms(peers=2))
    swarm.join(A)
    before = swarm.state

    swarm.tell(PeerLost(B, swarm.at))
    swarm.tell(PeerReturned(B, "", StepNumber(0), swarm.at))

    assert swarm.state == before


def test_resumed__members_were_here__all_are_away_from_now() -> None:
    swarm = Swarm(terms(peers=2))
    swarm.join(A, B)
    swarm.now += 500

    swarm.tell(Resumed(swarm.at))

    assert {member.lost_at for member in swarm.state.members.values()} == {swarm.now}
    assert next_deadline(swarm.state) == swarm.now + 10_000


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (encode({"event": "Imagined", "values": {}}), UnknownVersion),
        (encode({"event": "Ticked", "values": {}}), Malformed),
        (encode({"event": "Ticked", "values": {"at": "noon"}}), Malformed),
        (encode(["Ticked"]), Malformed),
        (b"\xc1", Malformed),
    ],
)
def test_decode_event__something_else__is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_event(data)
    assert STAGE == 0


def test_stage_for_newcomer__before_the_start__fills_up_whatever_the_rates() -> None:
    swarm = Swarm(terms(peers=2, stages=2))
    swarm.tell(joining(A, 0, rate=1000, at=swarm.now))
    for slow in (B, C):
        swarm.tell(joining(slow, 1, rate=1, at=swarm.now))

    assert stage_for_newcomer(swarm.state) == 0


def test_stage_for_newcomer__after_the_start__lowest_sum_of_rates() -> None:
    swarm = Swarm(terms(peers=1, stages=2))
    swarm.tell(joining(A, 0, rate=1000, at=swarm.now))
    for slow in (B, C):
        swarm.tell(joining(slow, 1, rate=100, at=swarm.now))
    assert swarm.state.started

    assert stage_for_newcomer(swarm.state) == 1
    swarm.tell(PeerLost(A, swarm.at))
    assert stage_for_newcomer(swarm.state) == 0


def test_stage_for_newcomer__equal_rates__fewest_owners() -> None:
    swarm = Swarm(terms(peers=2, stages=2))
    for who, stage in ((A, 0), (B, 0), (C, 1), (D, 1)):
        owner = owner_of(A) if stage == 0 else owner_of(who)
        swarm.tell(joining(who, stage, owner=owner, at=swarm.now))

    assert stage_for_newcomer(swarm.state) == 0


@pytest.mark.parametrize(
    ("sealed", "applied", "expected"),
    [
        (0, (0, 0), 0),
        (1, (1, 1), 0),
        (2, (2, 1), 0),  # one has not written its checkpoint yet, both keep all chunks
        (2, (2, 2), 2),
        (3, (3, 2), 2),
        (3, (3, 0), 2),  # a newcomer after the first checkpoint
        (4, (4, 3), 2),  # the other writes the one of step 4 when it applies it
        (4, (4, 4), 4),
        (5, (5, 0), 4),  # a newcomer that is far behind is not counted on
        (4, (3, 0), 2),  # nor when it comes while a checkpoint is being written
        (27, (15, 14), 14),  # steps without work were sealed while nobody was here
        (27, (16, 15), 14),
    ],
)
def test_state_step_for__members_at_these_steps__newest_checkpoint_that_all_keep(
    sealed: int, applied: tuple[int, int], expected: int
) -> None:
    swarm = Swarm(terms(peers=2))
    for who, step in zip((A, B), applied, strict=True):
        swarm.tell(joining(who, applied=step, at=swarm.now))
    swarm.state = replace(swarm.state, step=StepNumber(sealed + 1))

    assert state_step_for(swarm.state, STAGE) == expected
    assert state_step_for(replace(swarm.state, phase=Finished()), STAGE) <= sealed + 1
