"""Who moves between groups: for what gain, and what keeps a peer where it is."""

from typing import Any

from contracts.terms.ids import Address, PeerId, StageIndex
from tests.support.rounds import member
from training.strategies.every_step.rebalance import Move, rebalance
from training.strategies.port import Member

PERIOD = 300_000
SAME = (1, 1, 1)  # FLOPs of an item


def placed(number: int, group: int, rate: int = 10, owner: int | None = None) -> Member:
    """A peer of an owner of its own, unless told."""
    account = Address(bytes([number if owner is None else owner]) * 20)
    return member(PeerId(bytes([number]) * 32), group, of=account, rate=rate)


def groups(*counts: int, **changed: Any) -> list[Member]:
    """So many equal peers a group, numbered from 0 on."""
    of = [group for group, count in enumerate(counts) for _ in range(count)]
    return [placed(number, group, **changed) for number, group in enumerate(of)]


def moved(
    peers: list[Member], *flops: int, since_move: int = PERIOD, **how: Any
) -> tuple[int, int, int] | None:
    """Number of the peer, from where and to where."""
    move = rebalance(peers, flops or SAME, since_move=since_move, period=PERIOD, **how)
    return None if move is None else (move.peer[0], move.source, move.target)


def test_rebalance__a_group_lost_half_of_its_peers__one_comes_from_the_fastest() -> None:
    assert rebalance(groups(4, 5, 2), SAME, since_move=PERIOD, period=PERIOD) == Move(
        PeerId(bytes([4]) * 32), StageIndex(1), StageIndex(2)
    )


def test_rebalance__one_peer_more__nobody() -> None:
    assert moved(groups(4, 5, 4)) is None


def test_rebalance__two_of_sixty_more__one_moves() -> None:
    assert moved(groups(61, 60, 59)) == (0, 0, 2)


def test_rebalance__two_slowest_groups__one_after_the_other() -> None:
    assert moved(groups(6, 3, 3)) == (0, 0, 1)


def test_rebalance__group_with_nobody__is_filled() -> None:
    assert moved(groups(3, 3, 0)) == (0, 0, 2)


def test_rebalance__peers_of_several_speeds__who_lifts_the_slower_group_most() -> None:
    peers = [placed(0, 0, 50), placed(1, 0, 20), placed(2, 0, 10), placed(3, 1, 30)]

    # Group 0 would be left with 30, 60 or 70, and group 1 gets 80, 50 or 40.
    assert moved(peers, 1, 1) == (1, 0, 1)


def test_rebalance__items_of_the_target_cost_more_or_less__rate_is_another_there() -> None:
    peers = [placed(0, 0, 10), placed(1, 0, 60), placed(2, 0, 60), placed(3, 1, 40)]

    assert moved(peers, 1, 1) == (1, 0, 1)  # 70 and 100
    assert moved(peers, 1, 100) == (1, 0, 1)  # it brings 0.6
    assert moved(peers, 10, 1) == (0, 0, 1)  # 120 and 140, not 70 and 640


def test_rebalance__two_owners__both_stay() -> None:
    own = {"owner": 7}
    peers = [placed(0, 0), placed(1, 0), placed(2, 0, **own), placed(3, 0, **own)]

    assert moved([*peers[1:], placed(9, 1)], 1, 1) == (2, 0, 1)  # the other peer of its owner stays
    assert moved([*peers[1:3], placed(9, 1, 1)], 1, 1) is None
    assert moved([*peers, placed(9, 1)], 1, 1) == (0, 0, 1)  # two owners stay


def test_rebalance__a_single_owner__keeps_a_peer() -> None:
    assert moved([*groups(3, 0, owner=7), placed(9, 1)], 1, 1) == (0, 0, 1)
    assert moved([placed(0, 0, 100), placed(9, 1)], 1, 1) is None


def test_rebalance__pending_claim__stays_with_its_evidence() -> None:
    peers = groups(3, 3, 1)
    pending = {each.peer for each in peers[:3]}

    assert moved(peers, pending=pending) == (3, 1, 2)
    assert moved([*peers[:3], *peers[6:]], pending=pending) is None


def test_rebalance__nobody_at_all__nobody() -> None:
    assert moved([]) is None
