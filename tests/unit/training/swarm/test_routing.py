"""Which unit goes out next."""

from contracts.terms.ids import StageIndex, UnitId
from tests.unit.training.swarm.factories import STAGE, A, B
from training.swarm.routing import route
from training.swarm.state import Place

PLACES: list[Place] = [(STAGE, UnitId(unit)) for unit in (2, 0, 1)]


def test_route__one_peer__gets_all_units_in_ascending_order() -> None:
    state, taken = route(PLACES), []
    for _ in range(4):
        state, place = state.next_for(A, STAGE)
        taken.append(place)
        if place is not None:
            state = state.came_back(A, place)

    assert taken == [(0, 0), (0, 1), (0, 2), None]
    assert state.away == frozenset()


def test_route__peer_does_not_answer__its_unit_goes_out_before_higher_ones() -> None:
    state = route(PLACES)
    state, first = state.next_for(A, STAGE)
    state, _ = state.next_for(B, STAGE)
    assert first is not None

    state = state.failed(A, first)

    state, again = state.next_for(B, STAGE)
    assert again == first


def test_route__peer_of_another_stage__gets_nothing() -> None:
    state = route(PLACES)

    after, place = state.next_for(A, StageIndex(1))

    assert (after, place) == (state, None)
