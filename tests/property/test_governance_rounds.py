"""What seals cover over any run of rounds: an item is sealed once, a claim paid once or never.

The oracle keeps sets of items and claims by itself; it knows neither ranges nor the cursor.
"""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance.seals import Derived
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Digest, PeerId
from contracts.terms.items import ItemNumber, numbers_of, ranges_of
from contracts.terms.signatures import Signed
from contracts.terms.work import WorkClaim
from tests.support.history import JobMaker, make_members

MEMBERS = 3


@dataclass(frozen=True)
class Plan:
    """One round: who claims, which claims RoundClosed names, and how the reduction goes."""

    working: frozenset[int]
    is_old_first: bool  # claims of void rounds are preferred to new ones
    is_closed: bool
    num_reduced: int  # buckets that somebody claims, of two
    is_taken_over: bool  # the first one by another peer than was dealt
    leaver: int | None


plans = st.builds(
    Plan,
    st.frozensets(st.integers(0, MEMBERS - 1)),
    st.booleans(),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([2, 2, 2, 1, 0]),
    st.booleans(),
    st.sampled_from([None] * 9 + [0]),
)


class Run:
    """A job and what the oracle knows of it."""

    def __init__(self) -> None:
        self.maker = JobMaker(members=make_members("abc"[:MEMBERS]))
        self.sealed = set[ItemNumber]()
        self.paid = set[Digest]()
        self.work = Counter[PeerId]()
        self.gone = set[int]()
        self.updates = 0

    def pending(self) -> list[WorkClaim]:
        """Claims of work that no seal has covered and a later one may."""
        found = (signed.message for signed in self.maker.history.pending.values())
        return [each for each in found if isinstance(each, WorkClaim) and each.what == "work"]

    def play(self, plan: Plan, *, last: bool = False) -> None:
        """One round, sealed and checked."""
        maker, before = self.maker, self.maker.record
        old = self.pending()
        items: list[Kept] = [maker.session.sign(each) for each in maker.notices()]
        new = []
        for number in sorted(plan.working - self.gone):
            member = maker.members[number]
            claim, leaves = maker.claim(member)
            new.append(claim)
            items += [member.session.sign(claim), Leaves(claim.digest(), leaves)]
        named = _disjoint([*old, *new] if plan.is_old_first else [*new, *old])
        buckets = list[Signed[WorkClaim]]()
        if plan.is_closed and named and not self.gone:
            closed = maker.closed(named)
            items.append(maker.session.sign(closed))
            buckets = maker.bucket_claims(closed, named)[: plan.num_reduced]
            if plan.is_taken_over and buckets:
                other = maker.members[1].session
                taken = buckets[0].message.model_copy(update={"peer": other.peer})
                buckets[0] = other.sign(taken)
        if plan.leaver is not None and plan.leaver not in self.gone and before.step:
            items.append(maker.session.sign(maker.notice("leave", maker.members[plan.leaver])))
            self.gone.add(plan.leaver)
        derived = maker.seal([*items, *buckets], last=last)
        if len(buckets) == 2:
            self._check_update(derived, named, buckets)
        else:
            after = derived.record
            moved = (after.cursor, after.gates, after.updates, after.pay.earned)
            assert moved == (before.cursor, before.gates, before.updates, before.pay.earned)
            left = {each.digest() for each in [*old, *new] if not self._is_gone(each)}
            assert {each.digest() for each in self.pending()} == (set() if last else left)
        assert set(maker.history.leaves) == {each.digest() for each in self.pending()}

    def _is_gone(self, claim: WorkClaim) -> bool:
        return claim.peer in {self.maker.members[number].session.peer for number in self.gone}

    def _check_update(
        self, derived: Derived, named: list[WorkClaim], buckets: list[Signed[WorkClaim]]
    ) -> None:
        names = {each.digest() for each in named}
        items = [item for each in named for item in each.numbers]
        assert names <= derived.names and not self.pending()
        assert len(items) == len(set(items)) and self.sealed.isdisjoint(items)
        self.sealed.update(items)
        dealt = [self.maker.members[bucket].session.peer for bucket in range(2)]
        unpaid = {
            peer for peer, one in zip(dealt, buckets, strict=True) if one.message.peer != peer
        }
        for claim in named:
            if claim.peer not in unpaid:
                self.work[claim.peer] += len(claim.numbers) * self.maker.spec.item_flops[0]
        assert derived.paid == {each.digest() for each in named if each.peer not in unpaid}
        assert self.paid.isdisjoint(derived.paid)
        self.paid |= derived.paid
        assert +Counter(derived.record.pay.earned) == +self.work
        seal = derived.seal
        self.updates += 1
        assert seal.updates == derived.record.updates == self.updates
        assert seal.next == max(self.sealed) + 1
        assert seal.unsealed == ranges_of(
            item for item in map(ItemNumber, range(seal.next)) if item not in self.sealed
        )


def _disjoint(claims: list[WorkClaim]) -> list[WorkClaim]:
    """Claims that do not share an item, the first ones first."""
    found, taken = list[WorkClaim](), set[ItemNumber]()
    for claim in claims:
        if taken.isdisjoint(claim.numbers):
            found.append(claim)
            taken.update(claim.numbers)
    return found


@given(st.lists(plans, min_size=1, max_size=8))
def test_rounds__any_run__items_sealed_once_claims_paid_once_and_a_void_round_moves_nothing(
    run: list[Plan],
) -> None:
    job, before = Run(), 0

    for plan in run:
        job.play(plan)
        cursor = job.maker.record.cursor
        assert cursor.next >= before, "`next` never falls"
        before = cursor.next
        issued = cursor.issue(6)
        assert job.sealed.isdisjoint(issued) and all(map(cursor.is_free, issued))
        assert issued[: len(numbers_of(cursor.unsealed))] == numbers_of(cursor.unsealed)[:6]
    job.play(Plan(frozenset(), True, False, 0, False, None), last=True)
    assert not job.maker.history.pending
