"""How many units a peer may be given."""

from fractions import Fraction

import pytest

from contracts.terms.ids import Address, PeerId, StageIndex
from tests.unit.training.swarm.factories import A, B, C, Swarm, joining, peer, terms
from training.swarm.caps import (
    Measured,
    Units,
    caps_in_stage,
    quotas_in_stage,
    quotas_of,
)
from training.swarm.events import PeerLeaving, PeerLost


def measured(name: PeerId, rate: int, owner: str = "") -> Measured:
    return Measured(name, Address((owner or name.decode()[0]).encode() * 20), rate)


@pytest.mark.parametrize(
    ("rates", "owners", "caps"),
    [
        ((100, 100), "ab", {"a": Fraction(3, 5), "b": Fraction(3, 5)}),
        ((2000, 100), "ab", {"a": Fraction(6, 5) * Fraction(20, 21)}),
        ((900, 100, 100, 100, 100), "abcde", {"a": Fraction(1, 4), "b": Fraction(3, 16)}),
        ((100,) * 6, "xxcdef", {"a": Fraction(1, 8), "b": Fraction(1, 8)}),
    ],
    ids=["a fifth above its half", "bound to its rate", "a quarter", "two peers share a quarter"],
)
def test_caps__peers_of_these_rates_and_owners__are_so_large(
    rates: tuple[int, ...], owners: str, caps: dict[str, Fraction]
) -> None:
    workers = [
        measured(peer(name), rate, owner)
        for name, rate, owner in zip("abcdef", rates, owners, strict=False)
    ]

    found = caps_in_stage(workers)

    assert {name: found[peer(name)] for name in caps} == caps
    assert sum(found.values()) >= 1


def test_quotas__rounding__moves_around_from_step_to_step() -> None:
    workers = [measured(A, 100), measured(B, 100), measured(C, 100)]

    largest = {
        max(quotas, key=lambda name: quotas[name])
        for quotas in (quotas_in_stage(workers, 4, turn=turn) for turn in range(3))
    }

    assert largest == {A, B, C}


THREE = [measured(A, 100), measured(B, 100), measured(C, 100)]
FIVE = [measured(peer(name), 100) for name in "abcde"]


@pytest.mark.parametrize(
    ("workers", "units", "most", "quotas"),
    [
        (THREE, 12, (2, 100, 100), (2, 5, 5)),  # others do it, and their speed caps are lifted
        (THREE, 12, (2, 2, 1), (5, 5, 2)),  # 4.8, the cap by speed, 4.8 and 2.4
        ([measured(A, 1000), *THREE[1:]], 12, (0, 0, 0), (10, 1, 1)),  # no more than their speed
        (THREE, 12, (0, 50, 50), (1, 6, 5)),
        (FIVE, 20, (20, 20, 1, 1, 1), (9, 8, 1, 1, 1)),  # a quarter is 5
    ],
    ids=["one for less", "all for less than a step", "nobody", "less than a unit", "two of five"],
)
def test_quotas__covered_for_so_many_units__are_these(
    workers: list[Measured], units: int, most: tuple[int, ...], quotas: tuple[int, ...]
) -> None:
    names = [worker.peer for worker in workers]

    found = quotas_in_stage(workers, units, most=dict(zip(names, most, strict=True)))

    assert found == dict(zip(names, quotas, strict=True))


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
