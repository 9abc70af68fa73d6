"""Claims that a round left out: when a later one may merge them."""

from collections.abc import Sequence

import pytest

from contracts.governance.job import follow
from contracts.governance.rounds import eligible
from contracts.terms.errors import Conflict, InvalidSeal
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Digest, StageIndex
from contracts.terms.work import WorkClaim
from tests.support.history import JobMaker, claims_in, make_digest, make_members
from tests.support.local_jobs import of_local_steps


def job(**changes: object) -> JobMaker:
    """Three members of one item a round."""
    return JobMaker(members=make_members("abc"), spec_changes=changes or of_local_steps())


def update(maker: JobMaker, items: Sequence[Kept], merged: Sequence[WorkClaim]) -> None:
    """Seal a round that merges these claims."""
    closed = maker.closed(merged)
    maker.seal([*items, maker.session.sign(closed), *maker.bucket_claims(closed, merged)])


def leave_out(maker: JobMaker, base: Digest | None = None) -> WorkClaim:
    """A round that merges all but the first member's claim, which is stored; returns that claim."""
    items, claims = list[Kept](), list[WorkClaim]()
    usual = maker.base(StageIndex(0))
    for member in maker.members:
        own = base if base is not None and member is maker.members[0] else usual
        claim, leaves = maker.claim(member, base=own)
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


@pytest.mark.parametrize("what", ["another base", "the newest base", "nothing else"])
def test_late_claim__of_another_base_or_alone__no_seal_merges_it(what: str) -> None:
    maker = job()
    base = make_digest("x") if what == "another base" else None
    if what == "the newest base":
        base = make_digest("state", 0, 1)
    late = leave_out(maker, base)
    items = [] if what == "nothing else" else work(maker)

    with pytest.raises(InvalidSeal) as caught:
        update(maker, items, [late, *claims_in(items, "work")])

    assert caught.value.data["part"] == "bases"


def test_late_claim__of_every_step__is_gone_with_the_update() -> None:
    maker = job(units_per_step=3)

    late = leave_out(maker)

    assert not eligible(maker.record, late) and not maker.history.pending
