"""What does a member believe of an anchor chain that a market shows?"""

from dataclasses import replace

import pytest

from contracts.governance.anchor_chain import AnchoredBatch, fold_anchor_chain
from contracts.terms import merkle
from contracts.terms.beacons import Beacon
from contracts.terms.errors import AuditMismatch, Equivocation, Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.merkle import batch_leaf, batch_root
from verification.draws.anchor_chains import (
    AnchorChainPage,
    Entry,
    FollowedAnchorChain,
    ShownBatch,
    Sighting,
    decode_page,
    show_batch,
)

JOB = JobId(b"j" * 32)
OTHER = JobId(b"a" * 32)
LATER = JobId(b"z" * 32)
OPENING = 10
BATCHES: tuple[tuple[int, tuple[Entry, ...]], ...] = (
    (4, ((OTHER, 1, Digest(b"1" * 32)),)),
    (9, ((OTHER, 2, Digest(b"2" * 32)),)),
    (12, ((OTHER, 3, Digest(b"3" * 32)), (JOB, 1, Digest(b"4" * 32)))),
    (15, ((OTHER, 4, Digest(b"5" * 32)),)),
    (18, ((JOB, 2, Digest(b"6" * 32)), (JOB, 3, Digest(b"7" * 32)))),
)


def beacon(number: int) -> Digest:
    return Digest(bytes([number + 1]) * 32)


def batch(number: int, *, has_beacon: bool = True) -> AnchoredBatch:
    block, entries = BATCHES[number]
    return AnchoredBatch(batch_root(entries), block, beacon(number) if has_beacon else None)


def anchor_chain(count: int) -> Digest:
    return fold_anchor_chain(batch(number) for number in range(count))


def sighting(count: int) -> Sighting:
    return Sighting(anchor_chain(count), count, False)


def page(first: int, until: int = len(BATCHES)) -> AnchorChainPage:
    shown = tuple(
        ShownBatch(
            batch(number),
            show_batch(BATCHES[number][1]) if BATCHES[number][0] > OPENING else (),
        )
        for number in range(first, until)
    )
    return AnchorChainPage(first, anchor_chain(first), shown)


def test_give_up__tree_is_not_sorted__its_anchorer_chooses_no_beacon_whatever_it_shows() -> None:
    """The job's leaf stands behind those of others: it could be shown, or be absent from there."""
    behind = (
        (OTHER, 3, Digest(b"3" * 32)),
        (LATER, 1, Digest(b"8" * 32)),
        (JOB, 1, Digest(b"4" * 32)),
    )
    root = merkle.root([batch_leaf(*each) for each in behind])
    moved = AnchoredBatch(root, 12, beacon(2))
    again = AnchoredBatch(batch_root((behind[2],)), 15, beacon(3))
    chain = [batch(0), batch(1), moved, again]
    leaves, told = show_batch(behind), []
    for shown in (leaves, leaves[2:], leaves[:2]):  # as it is, its leaf alone, its absence
        followed = FollowedAnchorChain(JOB, OPENING)
        rest = (ShownBatch(moved, shown), ShownBatch(again, show_batch((behind[2],))))
        followed.take(AnchorChainPage(1, anchor_chain(1), (*page(1, 2).batches, *rest)))
        seen = Sighting(fold_anchor_chain(chain), 4, False)
        assert followed.confirm(seen) is None and followed.give_up(chain)
        followed.take(AnchorChainPage(3, fold_anchor_chain(chain[:3]), rest[1:]))
        told.append(followed.confirm(seen))

    assert told == [tuple(unserved(2, 1, 5))] * 3


def test_confirm__two_seals_of_one_step__are_an_equivocation() -> None:
    again: tuple[Entry, ...] = ((JOB, 1, Digest(b"x" * 32)),)
    second = AnchoredBatch(batch_root(again), 20, beacon(5))
    followed = FollowedAnchorChain(JOB, OPENING)
    whole = page(1)
    more = (*whole.batches, ShownBatch(second, show_batch(again)))
    followed.take(replace(whole, batches=more))
    folded = fold_anchor_chain((second,), anchor_chain(5))

    with pytest.raises(Equivocation):
        followed.confirm(Sighting(folded, 6, False))


def test_confirm__steps_that_nobody_has_sealed_yet__names_what_was_anchored_for_them() -> None:
    """By which whoever holds their seals later finds that these are none."""
    early: tuple[Entry, ...] = tuple((JOB, step, Digest(bytes([step]) * 32)) for step in (4, 5, 99))
    more = AnchoredBatch(batch_root(early), 20, beacon(5))
    followed, whole = FollowedAnchorChain(JOB, OPENING), page(1)
    batches = (*whole.batches, ShownBatch(more, show_batch(early)))
    followed.take(replace(whole, batches=batches))

    told = followed.confirm(Sighting(fold_anchor_chain((more,), anchor_chain(5)), 6, False))

    found = [(each.step, each.seal) for each in told or () if each.block == 20]
    assert found == [(step, seal) for _, step, seal in early]


def unserved(number: int, first: int, until: int) -> list[Beacon]:
    """All is drawn of these steps, by the beacon of a batch that may hold them."""
    block, _ = BATCHES[number]
    steps = range(first, until + 1)
    return [Beacon(StepNumber(step), ZERO_DIGEST, block, beacon(number), None) for step in steps]


def test_give_up__no_beacon_yet_or_no_batch__waits() -> None:
    followed = FollowedAnchorChain(JOB, OPENING)
    followed.take(page(1, 3))

    assert not followed.give_up([batch(number, has_beacon=number < 3) for number in range(4)])
    assert not followed.give_up([batch(number) for number in range(3)])
    assert followed.wanted == 3


def test_confirm__given_up_with_what_the_chain_did_not_say__is_refused() -> None:
    followed = FollowedAnchorChain(JOB, OPENING)
    followed.take(page(1, 3))
    wrong = replace(batch(3), beacon=beacon(99))
    followed.give_up([*(batch(number) for number in range(3)), wrong])

    with pytest.raises(AuditMismatch):
        followed.confirm(sighting(4))


def test_take__market_says_that_it_does_not_serve_a_list__is_as_if_it_said_nothing() -> None:
    followed, honest = FollowedAnchorChain(JOB, OPENING), page(1)
    hidden = replace(honest.batches[2], leaves=(), is_served=False)
    said = replace(honest, batches=(*honest.batches[:2], hidden, *honest.batches[3:]))

    followed.take(said)

    assert decode_page(said.encoded()) == said
    assert followed.wanted == 3 and followed.confirm(sighting(5)) is None


def test_decode_page__cut_off__is_malformed() -> None:
    with pytest.raises(Malformed):
        decode_page(page(1).encoded()[:-1])
