"""Claims that a round left out: when a later one may merge them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from contracts.governance.checking import Checking, RoundFacts, Standing, Terms, Unchecked
from contracts.governance.job import follow
from contracts.governance.rounds import check_claim, eligible
from contracts.terms.errors import Conflict, InvalidSeal
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.work import WorkClaim
from tests.support.history import (
    JobMaker,
    claims_in,
    make_digest,
    make_members,
    report_claim,
)
from tests.support.local_jobs import of_local_steps


def job(**changes: object) -> JobMaker:
    """Three members of one item a round."""
    return JobMaker(members=make_members("abc"), spec_changes=changes or of_local_steps())


def update(maker: JobMaker, items: Sequence[Kept], merged: Sequence[WorkClaim]) -> None:
    """Seal a round that merges these claims."""
    closed = maker.closed(merged)
    maker.seal([*items, maker.session.sign(closed), *maker.bucket_claims(closed, merged)])


def leave_out(maker: JobMaker, said: Sequence[Kept] = (), **changed: Any) -> WorkClaim:
    """A round that merges all but the first member's claim, which is stored; returns that claim.

    Args:
        maker: Of the job.
        said: What else its seal covers.
        changed: In that claim.
    """
    items, claims = [*said], list[WorkClaim]()
    for member in maker.members:
        claim, leaves = maker.claim(member, **(changed if member is maker.members[0] else {}))
        claims.append(claim)
        items += [member.session.sign(claim), Leaves(claim.digest(), leaves)]
    notices = [maker.session.sign(each) for each in maker.notices()]
    update(maker, [*notices, *items], claims[1:])
    return claims[0]


def work(maker: JobMaker) -> list[Kept]:
    """What the other members claim of the round after."""
    issued = maker.record.cursor.issue(3)
    items = list[Kept]()
    for member, item in zip(maker.members[1:], issued[1:], strict=True):
        claim, leaves = maker.claim(member, [item])
        items += [member.session.sign(claim), Leaves(claim.digest(), leaves)]
    return items


def test_late_claim__of_local_steps__is_merged_and_paid_once_by_the_round_after() -> None:
    maker = job()
    late = leave_out(maker)
    assert maker.seals[-1].paid.isdisjoint({late.digest()}) and eligible(maker.record, late)

    items = work(maker)
    update(maker, items, [late, *claims_in(items, "work")])

    assert late.digest() in maker.seals[-1].paid
    assert not maker.record.cursor.unsealed and not maker.history.pending
    with pytest.raises(InvalidSeal):
        update(maker, work(maker), [late, *claims_in(work(maker), "work")])


def test_late_claim__left_out_again__expires_with_the_next_update_and_not_with_a_void_round() -> (
    None
):
    maker = job()
    late = leave_out(maker)
    maker.seal([])
    assert eligible(maker.record, late) and len(maker.history.pending) == 1

    items = work(maker)
    update(maker, items, claims_in(items, "work"))

    assert not eligible(maker.record, late) and not maker.history.pending
    with pytest.raises(Conflict):
        follow(maker.history, maker.members[0].session.sign(late))


def test_late_claim__names_a_report_that_the_seal_before_holds__is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its seal could not be made, and the job would end there."""
    plain = Unchecked.after

    def deaf(self: Unchecked, facts: RoundFacts, terms: Terms) -> tuple[Checking, Standing]:
        claims = [claim.model_copy(update={"reports": ()}) for claim in facts.claims]
        return plain(self, replace(facts, claims=claims, reports=()), terms)

    monkeypatch.setattr(Unchecked, "after", deaf)  # what draws want is not tried here
    maker = job()
    maker.seal_step()
    auditor = maker.members[0].session
    report, leaf = report_claim(
        maker.spec.job(), auditor.peer, "match", subject=make_digest("x"), round=StepNumber(1)
    )
    said: list[Kept] = [auditor.sign(report), Leaves(report.digest(), (leaf,))]

    late = leave_out(maker, said=said, reports=(report.digest(),))
    assert report.digest() in maker.seals[-1].names
    items = work(maker)
    update(maker, items, [late, *claims_in(items, "work")])

    assert late.digest() in maker.seals[-1].paid


@pytest.mark.parametrize("what", ["another base", "the newest base", "nothing else"])
def test_late_claim__of_another_base_or_alone__no_seal_merges_it(what: str) -> None:
    maker = job()
    bases = {"another base": make_digest("x"), "the newest base": make_digest("state", 0, 1)}
    late = leave_out(maker, base=bases.get(what, maker.base(StageIndex(0))))
    items = [] if what == "nothing else" else work(maker)

    with pytest.raises(InvalidSeal) as caught:
        update(maker, items, [late, *claims_in(items, "work")])

    assert caught.value.data["part"] == "bases"


def test_late_claim__of_every_step__is_gone_with_the_update() -> None:
    maker = job(units_per_step=3)

    late = leave_out(maker)

    assert not eligible(maker.record, late) and not maker.history.pending


@pytest.mark.parametrize(
    ("overlap", "back", "is_taken"),
    [
        (True, (0, 0), True),
        (True, (1, 0), True),
        (True, (1, 1), True),
        (True, (0, 1), False),  # on the weights of before after those of now
        (True, (2, 0), False),
        (False, (1, 0), False),
    ],
)
def test_check_claim__items_computed_ahead_of_the_round__stand_first_and_are_of_the_round_before(
    overlap: bool, back: tuple[int, int], is_taken: bool
) -> None:
    maker = job(**of_local_steps(segments=2, overlap=overlap))
    for _ in range(2):
        maker.seal_step()
    numbers = maker.items_of(maker.members[0])
    leaves = tuple(
        leaf.model_copy(update={"base_round": leaf.base_round - rounds})
        for leaf, rounds in zip(
            (maker.leaf(StageIndex(0), item) for item in numbers), back, strict=True
        )
    )
    claim, _ = maker.claim(maker.members[0], leaf_list=leaves)

    if is_taken:
        check_claim(maker.record, claim, leaves)
    else:
        with pytest.raises(InvalidSeal):
            check_claim(maker.record, claim, leaves)
