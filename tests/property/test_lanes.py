"""Any lane, shown in any pages at any times: a member learns exactly its coins, or refuses.

Whatever of what the market shows is altered or left out, the member tells no coin that is not the
chain's and leaves none out below what it says is certain.
"""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance.lane import AnchoredBatch, fold_lane
from contracts.terms.coins import Coin
from contracts.terms.digest import keccak
from contracts.terms.errors import AuditMismatch, Equivocation
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.merkle import batch_root
from verification.draws import lanes
from verification.draws.lanes import Entry, ShownBatch, show_batch

JOB = JobId(b"m" * 32)
JOBS = (JobId(b"a" * 32), JOB, JobId(b"z" * 32))


@dataclass(frozen=True)
class Lane:
    """What is on chain, and when the job was opened."""

    entries: tuple[tuple[Entry, ...], ...]
    batches: tuple[AnchoredBatch, ...]  # all with their coins
    opening: int

    def hash(self, count: int, *, is_pending: bool) -> Digest:
        """SealAnchor's word after `count` batches."""
        shown = list(self.batches[:count])
        if is_pending:
            shown[-1] = replace(shown[-1], coin=None)
        return fold_lane(shown)

    def is_since(self, number: int) -> bool:
        """Whether there is such a batch, and the job might speak in it."""
        return number < len(self.batches) and self.batches[number].block > self.opening

    def coins(self, count: int) -> list[Coin]:
        """The job's coins in the first `count` batches."""
        return [
            Coin(StepNumber(step), batch.root, batch.block, batch.coin or Digest(b""), seal)
            for batch, entries in zip(self.batches[:count], self.entries, strict=False)
            for job, step, seal in entries
            if job == JOB
        ]


@st.composite
def any_lane(draw: st.DrawFn) -> Lane:
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
    return Lane(tuple(entries), batches, opening)


def page(lane: Lane, first: int, until: int, *, newest_has_coin: bool) -> lanes.LanePage:
    """What an honest market shows."""
    shown = []
    for number in range(first, until):
        batch = lane.batches[number]
        if number == until - 1 and not newest_has_coin:
            batch = replace(batch, coin=None)
        early = batch.block <= lane.opening
        shown.append(ShownBatch(batch, () if early else show_batch(lane.entries[number])))
    return lanes.LanePage(first, fold_lane(lane.batches[:first]), tuple(shown))


def begin(lane: Lane) -> int:
    """Number of the last batch that the opening came after, or 0."""
    early = [n for n, batch in enumerate(lane.batches) if batch.block <= lane.opening]
    return early[-1] if early else 0


MOVES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 7), st.booleans(), st.booleans()), max_size=12
)
"""Length of the next page, count of the next sighting, and whether newest coins are there."""


def follow(lane: Lane, moves: list[tuple[int, int, bool, bool]]) -> None:
    """Pages and sightings in any order; at the end everything."""
    followed, told = lanes.FollowedLane(JOB, lane.opening), list[Coin]()
    last = len(lane.batches)
    for length, count, has_coin, is_pending in [*moves, *[(3, last, True, False)] * last]:
        first = begin(lane) if followed.wanted is None else followed.wanted
        until = min(first + length, last)
        followed.take(page(lane, first, until, newest_has_coin=has_coin))
        count = min(count, last)
        pending = is_pending and count > 0
        seen = lanes.Sighting(lane.hash(count, is_pending=pending), count, pending)
        found = followed.confirm(seen)
        told += found or ()
        if found is not None:
            assert len(told) >= len(lane.coins(count - pending))
    assert told == lane.coins(last)


@given(any_lane(), MOVES)
def test_followed_lane__any_pages_and_sightings__tells_each_coin_once_in_order(
    lane: Lane, moves: list[tuple[int, int, bool, bool]]
) -> None:
    follow(lane, moves)


WRONG = Digest(b"w" * 32)


def altered(shown: lanes.LanePage, where: int, how: int) -> lanes.LanePage:
    """The page with one thing wrong."""
    place = where % len(shown.batches)
    batches = list(shown.batches)
    each = batches[place]
    match how:
        case 0:
            batches[place] = replace(each, batch=replace(each.batch, coin=WRONG))
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
        case _:  # a lane that begins later
            rest = fold_lane((each.batch for each in batches[: place + 1]), shown.before)
            return lanes.LanePage(shown.first + place + 1, rest, tuple(batches[place + 1 :]))
    return replace(shown, batches=tuple(batches))


def lie(lane: Lane, where: int, how: int) -> None:
    """A whole lane with one thing wrong is refused, waited with, or makes no difference."""
    followed, last = lanes.FollowedLane(JOB, lane.opening), len(lane.batches)
    shown = altered(page(lane, begin(lane), last, newest_has_coin=True), where, how)
    try:
        followed.take(shown)
        found = followed.confirm(lanes.Sighting(lane.hash(last, is_pending=False), last, False))
    except (AuditMismatch, Equivocation):
        return
    assert found is None or list(found) == lane.coins(last)


@given(any_lane(), st.integers(0, 6), st.integers(0, 8))
def test_followed_lane__one_thing_wrong__tells_no_wrong_coin(
    lane: Lane, where: int, how: int
) -> None:
    lie(lane, where, how)


def hide(lane: Lane, hidden: set[int]) -> None:
    """A market that never serves some lists: their steps are drawn whole, and none by a later coin.

    Whoever chooses which lists are served chooses no coin: a step has that of the first batch that
    holds it, or of one before that, and then all of it is drawn.
    """
    followed, told, last = lanes.FollowedLane(JOB, lane.opening), list[Coin](), len(lane.batches)
    for count in range(1, last + 1):
        seen = lanes.Sighting(lane.hash(count, is_pending=False), count, False)
        while (found := followed.confirm(seen)) is None:
            first = begin(lane) if followed.wanted is None else followed.wanted
            until = next((number for number in range(first, last) if number in hidden), last)
            served = page(lane, first, until, newest_has_coin=True)
            if not (first < until and followed.take(served)):
                assert followed.give_up(lane.batches)
        told += found
    assert len({coin.step for coin in told}) == len(told)
    true = {coin.step: coin for coin in lane.coins(last)}
    at = {batch.block: number for number, batch in enumerate(lane.batches)}
    for coin in told:
        if coin.batch != ZERO_DIGEST:
            assert coin == true[coin.step] and at[coin.block] not in hidden
        else:
            assert at[coin.block] in hidden
            assert coin.step not in true or coin.block <= true[coin.step].block
    assert true.keys() <= {coin.step for coin in told}


@given(any_lane(), st.sets(st.integers(0, 6)))
def test_followed_lane__lists_that_are_never_served__choose_no_coin(
    lane: Lane, hidden: set[int]
) -> None:
    hide(lane, {number for number in hidden if lane.is_since(number)})
