"""Any anchor chain, shown in any pages at any times: a member learns exactly its beacons, or
refuses.

Whatever of what the market shows is altered or left out, the member tells no beacon that is not the
chain's and leaves none out below what it says is certain.
"""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance.anchor_chain import AnchoredBatch, fold_anchor_chain
from contracts.terms.beacons import Beacon
from contracts.terms.digest import keccak
from contracts.terms.errors import AuditMismatch, Equivocation
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.merkle import batch_root
from verification.draws.anchor_chains import (
    AnchorChainPage,
    Entry,
    FollowedAnchorChain,
    ShownBatch,
    Sighting,
    show_batch,
)

JOB = JobId(b"m" * 32)
JOBS = (JobId(b"a" * 32), JOB, JobId(b"z" * 32))


@dataclass(frozen=True)
class AnchorChain:
    """What is on chain, and when the job was opened."""

    entries: tuple[tuple[Entry, ...], ...]
    batches: tuple[AnchoredBatch, ...]  # all with their beacons
    opening: int

    def hash(self, count: int, *, is_pending: bool) -> Digest:
        """SealAnchor's word after `count` batches."""
        shown = list(self.batches[:count])
        if is_pending:
            shown[-1] = replace(shown[-1], beacon=None)
        return fold_anchor_chain(shown)

    def is_since(self, number: int) -> bool:
        """Whether there is such a batch, and the job might speak in it."""
        return number < len(self.batches) and self.batches[number].block > self.opening

    def beacons(self, count: int) -> list[Beacon]:
        """The job's beacons in the first `count` batches."""
        return [
            Beacon(StepNumber(step), batch.root, batch.block, batch.beacon or Digest(b""), seal)
            for batch, entries in zip(self.batches[:count], self.entries, strict=False)
            for job, step, seal in entries
            if job == JOB
        ]


@st.composite
def any_anchor_chain(draw: st.DrawFn) -> AnchorChain:
    """Batches of three jobs; ours speaks in batches after its opening only."""
    gaps = draw(st.lists(st.integers(1, 3), min_size=1, max_size=7))
    opened = draw(st.integers(0, len(gaps)))
    blocks = [10 + sum(gaps[: index + 1]) for index in range(len(gaps))]
    opening = blocks[opened - 1] if opened else 1
    steps, entries = dict.fromkeys(JOBS, 0), []
    for index in range(len(gaps)):
        batch: list[Entry] = []
        for job in JOBS:
            most = 0 if job == JOB and index < opened else 2
            least = 1 if job == JOBS[2] else 0  # a batch is never empty
            for _ in range(draw(st.integers(least, max(least, most)))):
                steps[job] += 1
                batch.append((job, steps[job], keccak(job + bytes([steps[job]]))))
        entries.append(tuple(batch))
    batches = tuple(
        AnchoredBatch(batch_root(each), block, keccak(bytes([block])))
        for each, block in zip(entries, blocks, strict=True)
    )
    return AnchorChain(tuple(entries), batches, opening)


def page(
    anchor_chain: AnchorChain, first: int, until: int, *, newest_has_beacon: bool
) -> AnchorChainPage:
    """What an honest market shows."""
    shown = []
    for number in range(first, until):
        batch = anchor_chain.batches[number]
        if number == until - 1 and not newest_has_beacon:
            batch = replace(batch, beacon=None)
        early = batch.block <= anchor_chain.opening
        shown.append(ShownBatch(batch, () if early else show_batch(anchor_chain.entries[number])))
    return AnchorChainPage(first, fold_anchor_chain(anchor_chain.batches[:first]), tuple(shown))


def begin(anchor_chain: AnchorChain) -> int:
    """Number of the last batch that the opening came after, or 0."""
    early = [
        n for n, batch in enumerate(anchor_chain.batches) if batch.block <= anchor_chain.opening
    ]
    return early[-1] if early else 0


MOVES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 7), st.booleans(), st.booleans()), max_size=12
)
"""Length of the next page, count of the next sighting, and whether newest beacons are there."""


@given(any_anchor_chain(), MOVES)
def test_followed_anchor_chain__any_pages_and_sightings__tells_each_beacon_once_in_order(
    anchor_chain: AnchorChain, moves: list[tuple[int, int, bool, bool]]
) -> None:
    """Pages and sightings in any order; at the end everything."""
    followed, told = FollowedAnchorChain(JOB, anchor_chain.opening), list[Beacon]()
    last = len(anchor_chain.batches)
    for length, count, has_beacon, is_pending in [*moves, *[(3, last, True, False)] * last]:
        first = begin(anchor_chain) if followed.wanted is None else followed.wanted
        until = min(first + length, last)
        followed.take(page(anchor_chain, first, until, newest_has_beacon=has_beacon))
        count = min(count, last)
        pending = is_pending and count > 0
        seen = Sighting(anchor_chain.hash(count, is_pending=pending), count, pending)
        found = followed.confirm(seen)
        told += found or ()
        if found is not None:
            assert len(told) >= len(anchor_chain.beacons(count - pending))
    assert told == anchor_chain.beacons(last)


WRONG = Digest(b"w" * 32)


def altered(shown: AnchorChainPage, where: int, how: int) -> AnchorChainPage:
    """The page with one thing wrong."""
    place = where % len(shown.batches)
    batches = list(shown.batches)
    each = batches[place]
    match how:
        case 0:
            batches[place] = replace(each, batch=replace(each.batch, beacon=WRONG))
        case 1:
            batches[place] = replace(each, batch=replace(each.batch, block=each.batch.block + 1))
        case 2:
            batches[place] = replace(each, batch=replace(each.batch, root=WRONG))
        case 3:
            batches[place] = replace(each, leaves=each.leaves[1:])
        case 4:
            batches[place] = replace(each, leaves=each.leaves[:-1])
        case 5:
            del batches[place]
        case 6:
            return replace(shown, before=WRONG)
        case 7:
            return replace(shown, first=shown.first + 1)
        case _:  # an anchor chain that begins later
            rest = fold_anchor_chain((each.batch for each in batches[: place + 1]), shown.before)
            return AnchorChainPage(shown.first + place + 1, rest, tuple(batches[place + 1 :]))
    return replace(shown, batches=tuple(batches))


@given(any_anchor_chain(), st.integers(0, 6), st.integers(0, 8))
def test_followed_anchor_chain__one_thing_wrong__tells_no_wrong_beacon(
    anchor_chain: AnchorChain, where: int, how: int
) -> None:
    """A whole anchor chain with one thing wrong is refused, waited with, or makes no difference."""
    followed, last = FollowedAnchorChain(JOB, anchor_chain.opening), len(anchor_chain.batches)
    shown = altered(
        page(anchor_chain, begin(anchor_chain), last, newest_has_beacon=True), where, how
    )
    try:
        followed.take(shown)
        found = followed.confirm(Sighting(anchor_chain.hash(last, is_pending=False), last, False))
    except (AuditMismatch, Equivocation):
        return
    assert found is None or list(found) == anchor_chain.beacons(last)


@given(any_anchor_chain(), st.sets(st.integers(0, 6)))
def test_followed_anchor_chain__lists_that_are_never_served__choose_no_beacon(
    anchor_chain: AnchorChain, numbers: set[int]
) -> None:
    """A market that never serves some lists: their steps are drawn whole, and none by a later
    beacon.

    Whoever chooses which lists are served chooses no beacon: a step has that of the first batch
    that holds it, or of one before that, and then all of it is drawn.
    """
    hidden = {number for number in numbers if anchor_chain.is_since(number)}
    followed, told = FollowedAnchorChain(JOB, anchor_chain.opening), list[Beacon]()
    last = len(anchor_chain.batches)
    for count in range(1, last + 1):
        seen = Sighting(anchor_chain.hash(count, is_pending=False), count, False)
        while (found := followed.confirm(seen)) is None:
            first = begin(anchor_chain) if followed.wanted is None else followed.wanted
            until = next((number for number in range(first, last) if number in hidden), last)
            served = page(anchor_chain, first, until, newest_has_beacon=True)
            if not (first < until and followed.take(served)):
                assert followed.give_up(anchor_chain.batches)
        told += found
    assert len({beacon.step for beacon in told}) == len(told)
    true = {beacon.step: beacon for beacon in anchor_chain.beacons(last)}
    at = {batch.block: number for number, batch in enumerate(anchor_chain.batches)}
    for beacon in told:
        if beacon.batch != ZERO_DIGEST:
            assert beacon == true[beacon.step] and at[beacon.block] not in hidden
        else:
            assert at[beacon.block] in hidden
            assert beacon.step not in true or beacon.block <= true[beacon.step].block
    assert true.keys() <= {beacon.step for beacon in told}
