"""A history item by item: what may come when."""

from functools import cache

import pytest

from contracts.governance.job import JobHistory, follow
from contracts.terms.errors import BadSignature, Conflict, Equivocation, InvalidSeal, Malformed
from contracts.terms.history import Kept, Leaves, claim_leaves_root
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.messages import JobOpening, LeaseAccept, Offer, Seal
from contracts.terms.signatures import Signed
from contracts.terms.work import RoundClosed, WorkClaim
from tests.support.history import (
    DOMAIN,
    JobMaker,
    make_digest,
    make_members,
    make_wallet,
    report_claim,
)


@cache
def made() -> JobMaker:
    maker = JobMaker(members=make_members("ab"), spec_changes={"units_per_step": 2})
    maker.seal_step()
    maker.seal_step(last=True)
    return maker


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """Make the job before any test is timed."""
    made()


def after(items: list[Kept]) -> JobHistory:
    history = JobHistory(DOMAIN)
    for item in items:
        history = follow(history, item)
    return history


@cache
def until(kind: type, number: int = 0) -> tuple[JobHistory, Kept]:
    """The history before the message `number` of a kind, and that message."""
    found = -1
    for index, item in enumerate(made().items):
        if isinstance(item, kind) or (isinstance(item, Signed) and isinstance(item.message, kind)):
            found += 1
            if found == number:
                return after(made().items[:index]), item
    raise AssertionError


@pytest.mark.parametrize("kind", [JobOpening, LeaseAccept, RoundClosed, Seal, Leaves])
def test_follow__first_item_is_no_spec__is_refused(kind: type) -> None:
    _, item = until(kind)

    with pytest.raises(Malformed):
        follow(JobHistory(DOMAIN), item)


@pytest.mark.parametrize("kind", [JobOpening, LeaseAccept, WorkClaim, RoundClosed, Leaves])
def test_follow__item_twice__is_a_conflict(kind: type) -> None:
    history, item = until(kind)

    with pytest.raises(Conflict):
        follow(follow(history, item), item)


def test_follow__second_opening_or_round_closed__is_equivocation() -> None:
    maker = made()
    opening = maker.opening.model_copy(update={"opening_block": 77})
    (at_opening, first), (at_close, close) = until(JobOpening), until(RoundClosed)
    assert isinstance(close, Signed)
    other = close.message.model_copy(update={"opened_at": 5})

    with pytest.raises(Equivocation):
        follow(follow(at_opening, first), maker.coordinator.sign(opening, DOMAIN))
    with pytest.raises(Equivocation):
        follow(follow(at_close, close), maker.session.sign(other))


def test_follow__second_spec_message_of_a_step_that_is_over_or_after_the_last__is_a_conflict() -> (
    None
):
    (second_step, _), (_, close) = until(RoundClosed, 1), until(RoundClosed)
    items = made().items

    for history, item in (
        (after(items[:2]), items[0]),
        (second_step, close),
        (after(items), close),
    ):
        with pytest.raises(Conflict):
            follow(history, item)


def test_follow__message_with_a_foreign_signature__is_refused() -> None:
    history, item = until(RoundClosed)
    assert isinstance(item, Signed)

    with pytest.raises(BadSignature):
        follow(history, made().members[0].session.sign(item.message))


def test_follow__leaves_of_another_claim__are_refused() -> None:
    history, item = until(Leaves)
    assert isinstance(item, Leaves)

    with pytest.raises(Malformed):
        follow(history, Leaves(item.claim, item.leaves * 2))
    with pytest.raises(Malformed):
        follow(history, Leaves(make_digest("x"), item.leaves))


@pytest.mark.parametrize("number", [0, 1], ids=["over other messages", "second of its round"])
def test_follow__seal_at_another_place__is_invalid(number: int) -> None:
    history, _ = until(RoundClosed, number)
    _, seal = until(Seal)

    with pytest.raises(InvalidSeal):
        follow(history, seal)


def test_follow__offer__is_not_kept() -> None:
    wallet, session = make_wallet("x"), made().session
    offer = Offer(
        account=wallet.account,
        session_key=session.key,
        nonce=0,
        price=1,  # type: ignore[arg-type]  # any price will do
        device_class="cpu",
        memory_bytes=1,
        flops_per_second=1,
        bandwidth=1,
        available_from=0,  # type: ignore[arg-type]
        expires_at=1,  # type: ignore[arg-type]
    )

    with pytest.raises(Malformed):
        follow(after(made().items[:2]), wallet.sign(offer, DOMAIN))


def test_follow__claim_that_extends_a_seal_before_the_update__is_a_conflict() -> None:
    maker = JobMaker(members=make_members("ab"), spec_changes={"units_per_step": 2})
    old, _ = maker.claim(maker.members[0], seq=1)
    maker.seal_step()
    member = maker.members[0]
    ahead, _ = maker.claim(member, round=StepNumber(3))
    report, leaf = report_claim(
        maker.spec.job(), member.session.peer, "match",
        round=StepNumber(2), group=StageIndex(0), subject=old.digest(),
    )  # fmt: skip

    for claim in (old, ahead, report):
        with pytest.raises(Conflict):
            follow(maker.history, member.session.sign(claim))
    late = member.session.sign(report.model_copy(update={"round": StepNumber(1)}))
    history = follow(maker.history, late)
    assert follow(history, Leaves(late.message.digest(), (leaf,))).leaves


def test_follow__report_whose_leaf_says_nothing__is_malformed() -> None:
    maker = made_open()
    member = maker.members[0]
    leaf = maker.leaf(StageIndex(0), maker.record.cursor.next)
    report, _ = report_claim(
        maker.spec.job(), member.session.peer, "match", leaves=claim_leaves_root([leaf]),
        round=StepNumber(1), group=StageIndex(0), subject=make_digest("x"),
    )  # fmt: skip
    history = follow(maker.history, member.session.sign(report))

    with pytest.raises(Malformed):
        follow(history, Leaves(report.digest(), (leaf,)))


def made_open() -> JobMaker:
    """A job of one sealed step that goes on."""
    maker = JobMaker(members=make_members("ab"), spec_changes={"units_per_step": 2})
    maker.seal_step()
    return maker
