"""How many units a peer may be given."""

from fractions import Fraction

from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from tests.unit.training.swarm.factories import A, B, C, Swarm, joining, peer, terms
from training.swarm.caps import (
    Covered,
    Measured,
    Units,
    caps_in_stage,
    quotas_for_trainer,
    quotas_in_stage,
    unlimited,
)
from training.swarm.events import PeerLeaving, PeerLost
from training.swarm.state import SwarmState


def quotas_of(state: SwarmState, covered: Covered = unlimited) -> Units:
    """What one trainer alone is given: all."""
    quotas = quotas_for_trainer(state, 0, 1, covered)
    return {peer: quota for peer, (quota, _) in quotas.items()}


def measured(name: PeerId, rate: int, owner: str = "") -> Measured:
    return Measured(name, Address((owner or name.decode()[0]).encode() * 20), rate)


def test_caps__two_equal_peers__a_fifth_above_their_half() -> None:
    caps = caps_in_stage([measured(A, 100), measured(B, 100)])

    assert caps == {A: Fraction(3, 5), B: Fraction(3, 5)}


def test_caps__one_twenty_times_faster_by_measurement__still_bound_to_its_rate() -> None:
    caps = caps_in_stage([measured(A, 2000), measured(B, 100)])

    assert caps[A] == Fraction(6, 5) * Fraction(20, 21)


def test_caps__five_owners_and_one_with_most_of_the_rates__gets_a_quarter() -> None:
    workers = [measured(peer(name), 900 if name == "a" else 100) for name in "abcde"]

    caps = caps_in_stage(workers)

    assert caps[A] == Fraction(1, 4)
    assert sum(caps.values()) == 1  # the others are lifted, all by the same factor
    assert caps[B] == Fraction(3, 16)


def test_caps__owner_with_two_peers_among_five_owners__shares_its_quarter() -> None:
    workers = [measured(peer(name), 100, "x" if name in "ab" else name) for name in "abcdef"]

    caps = caps_in_stage(workers)

    assert caps[A] == caps[B] == Fraction(1, 8)


def test_quotas__rounding__moves_around_from_step_to_step() -> None:
    workers = [measured(A, 100), measured(B, 100), measured(C, 100)]

    largest = {
        max(quotas, key=lambda name: quotas[name])
        for quotas in (quotas_in_stage(workers, 4, turn=turn) for turn in range(3))
    }

    assert largest == {A, B, C}


THREE = [measured(A, 100), measured(B, 100), measured(C, 100)]


def test_quotas__one_is_covered_for_less__others_do_it_and_their_speed_caps_are_lifted() -> None:
    quotas = quotas_in_stage(THREE, 12, most={A: 2, B: 100, C: 100})

    assert quotas == {A: 2, B: 5, C: 5}


def test_quotas__all_together_are_covered_for_less_than_a_step__covers_are_lifted_alike() -> None:
    quotas = quotas_in_stage(THREE, 12, most={A: 2, B: 2, C: 1})

    assert sum(quotas.values()) == 12
    assert quotas == {A: 5, B: 5, C: 2}  # 4.8, the cap by speed, 4.8 and 2.4


def test_quotas__nobody_is_covered__slow_ones_get_no_more_than_their_speed() -> None:
    workers = [measured(A, 1000), measured(B, 100), measured(C, 100)]

    quotas = quotas_in_stage(workers, 12, most=dict.fromkeys((A, B, C), 0))

    assert quotas == {A: 10, B: 1, C: 1}


def test_quotas__covered_for_less_than_a_unit__may_do_one() -> None:
    assert quotas_in_stage(THREE, 12, most={A: 0, B: 50, C: 50})[A] == 1


def test_quotas__five_owners_and_only_two_covered__quarters_are_lifted() -> None:
    workers = [measured(peer(name), 100) for name in "abcde"]
    most = dict.fromkeys(map(peer, "cde"), 1)

    quotas = quotas_in_stage(workers, 20, most=most)

    assert [quotas[peer(name)] for name in "cde"] == [1, 1, 1]
    assert sorted((quotas[A], quotas[B])) == [8, 9]  # a quarter is 5


def test_quotas_of__cover_of_a_stage__is_asked_with_what_speed_allows() -> None:
    swarm = Swarm(terms(peers=3, units=6))
    swarm.join(A, B)
    asked: list[tuple[StageIndex, Units]] = []

    def covered(stage: StageIndex, by_speed: Units) -> Units:
        asked.append((stage, by_speed))
        return {A: 1}

    assert quotas_of(swarm.state, covered) == {A: 1, B: 5}
    assert asked == [(0, quotas_of(swarm.state))]


def test_quotas_of__peers_lost_or_leaving__others_may_do_everything() -> None:
    swarm = Swarm(terms(peers=3, units=6))
    swarm.join(A, B)
    swarm.tell(joining(C, rate=50, at=swarm.now))
    assert quotas_of(swarm.state) == {A: 3, B: 3, C: 1}

    swarm.tell(PeerLost(B, swarm.at))
    swarm.tell(PeerLeaving(C, swarm.at))

    assert quotas_of(swarm.state) == {A: 7}


def test_quotas_for_trainer__units_done_already__are_counted_in_their_trainers_part() -> None:
    swarm = Swarm(terms(peers=1, units=6))
    swarm.join(A)
    swarm.work(A, 0, 1, 2)

    parts = [quotas_for_trainer(swarm.state, trainer, 2) for trainer in range(2)]

    assert [part[A][1] for part in parts] == [2, 1]
    assert sum(part[A][0] for part in parts) == quotas_of(swarm.state)[A]
    assert swarm.state.step == StepNumber(1)
