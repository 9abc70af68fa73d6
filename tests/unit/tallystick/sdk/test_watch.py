"""A job's live state: what its events add up to."""

from typing import Any

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Address, Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.events import (
    CheckpointEvent,
    ClaimedEvent,
    EndEvent,
    FundedEvent,
    JobEvent,
    LimitEvent,
    PeerEvent,
    PostedEvent,
    ReclaimedEvent,
    ReportedEvent,
    RuledEvent,
    SealedEvent,
    StateEvent,
    UnpublishedEvent,
)
from tallystick.cli.job_watch import live_line
from tallystick.sdk.watch import JobLive, fold

JOB = JobId(bytes(32))
ANN, BOB = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)
ACCOUNT = Address(bytes([7]) * 20)
WORK, OTHER = Digest(bytes([3]) * 32), Digest(bytes([4]) * 32)


def folded(*events: JobEvent) -> JobLive:
    live = JobLive(JOB)
    for number, event in enumerate(events, start=1):
        live = fold(live, number, event)
    return live


def at(seconds: int) -> UnixMillis:
    return UnixMillis(1000 * seconds)


def posted(steps: int = 10) -> PostedEvent:
    return PostedEvent(
        at=at(0),
        name="a job",
        poster=ACCOUNT,
        budget=BaseUnits(1000),
        price_ceiling=PricePerPflop(1),
        deadline=UnixSeconds(1),
        steps=steps,
        stages=2,
        peers_per_stage=3,
        audit_budget=None,
    )


def sealed(step: int, seconds: int, **changed: Any) -> SealedEvent:
    values: dict[str, Any] = {
        "at": at(seconds),
        "step": StepNumber(step),
        "seal": WORK,
        "units": 4,
        "peers": 2,
        "members": 2,
        "loss_millionths": 5_000_000 - step,
        "earned": BaseUnits(10 * step),
        "vested": BaseUnits(step),
        "budget": BaseUnits(1000),
        "last": False,
    }
    return SealedEvent(**(values | changed))


def peer(what: str, who: PeerId = ANN) -> PeerEvent:
    return PeerEvent.model_validate(
        {
            "at": at(1),
            "what": what,
            "peer": who,
            "account": ACCOUNT,
            "stage": StageIndex(0),
            "step": StepNumber(1),
        }
    )


def ruled(what: str, subject: Digest = WORK, about: PeerId = ANN) -> RuledEvent:
    return RuledEvent.model_validate(
        {
            "at": at(1),
            "what": what,
            "subject": subject,
            "step": StepNumber(2),
            "peer": about,
            "by": (),
        }
    )


def test_fold__seals_and_reports__show_progress_spend_and_pace() -> None:
    report = ReportedEvent(
        at=at(9), step=3, loss_millionths=1, tokens_per_second=700, validation_millionths=4
    )

    live = folded(posted(), sealed(1, 2), sealed(2, 4), sealed(3, 8), report)

    assert (live.step, live.earned, live.vested, live.number) == (3, 30, 3, 5)
    assert (live.loss_millionths, live.tokens_per_second) == (4_999_997, 700)
    assert live.validation_millionths == 4 and live.at == at(9)
    assert live.seconds_left == 7 * 3


def test_fold__peers__join_leave_come_back_and_are_suspended() -> None:
    both = (peer("join"), peer("join", BOB))

    assert folded(*both).num_members == 2
    assert folded(*both, peer("leave")).num_members == 1
    assert folded(*both, peer("leave"), peer("join")).num_members == 2
    suspended = folded(*both, peer("suspension"), peer("missed_report", BOB))
    assert suspended.num_members == 1 and suspended.peers[ANN].is_suspended


def test_fold__rulings__count_each_draw_once() -> None:
    live = folded(
        ruled("drawn"),
        ruled("drawn", OTHER, BOB),
        ruled("settled"),
        ruled("accused", OTHER, BOB),
        ruled("convicted", OTHER, BOB),
        ruled("slashable", OTHER, BOB),
    )

    audits = live.audits
    assert (audits.drawn, audits.matched, audits.mismatched) == (2, 1, 1)
    assert not audits.open and audits.convicted == {BOB}


def test_fold__accuser_convicted__who_did_the_work_matched() -> None:
    audits = folded(ruled("drawn"), ruled("convicted", about=BOB)).audits

    assert (audits.drawn, audits.matched, audits.mismatched) == (1, 1, 0)
    assert audits.convicted == {BOB}


def test_fold__money__is_what_the_chain_moved() -> None:
    def limit(amount: int, account: Address = ACCOUNT) -> LimitEvent:
        return LimitEvent(at=at(1), account=account, limit=BaseUnits(amount), transaction=WORK)

    live = folded(
        FundedEvent(at=at(1), amount=BaseUnits(100), transaction=WORK),
        limit(50),
        limit(70),
        limit(5, Address(bytes(20))),
        ClaimedEvent(at=at(1), account=ACCOUNT, amount=BaseUnits(60), transaction=WORK),
        ReclaimedEvent(at=at(1), amount=BaseUnits(25), transaction=WORK),
        EndEvent(at=at(1)),
    )

    assert (live.funded, live.committed, live.claimed) == (75, 75, 60)
    assert live.is_ended


def test_fold__weights_that_could_not_be_uploaded__say_why_until_they_are_here() -> None:
    failed = UnpublishedEvent(
        at=at(1), stage=StageIndex(1), step=StepNumber(4), peer=ANN, reason="no space"
    )

    def checkpoint(stage: int, *, is_here: bool) -> CheckpointEvent:
        return CheckpointEvent(
            at=at(1), stage=StageIndex(stage), step=StepNumber(4), blob=WORK, peer=ANN,
            is_here=is_here,
        )  # fmt: skip

    live = folded(failed, checkpoint(1, is_here=False), checkpoint(0, is_here=True))

    assert live.unpublished == {1: "no space"}
    assert "weights of stage 1 were not published: no space" in live_line(live)
    assert folded(failed, checkpoint(1, is_here=True)).unpublished == {}
    assert folded(checkpoint(1, is_here=True), failed).unpublished == {}


def test_fold__finished__is_over_once_the_last_seal_is_told_too() -> None:
    finished = StateEvent(at=at(3), state="finished", failure=None)
    failed = StateEvent(at=at(3), state="failed", failure="the deadline is over")

    assert not folded(posted(), sealed(1, 2), finished).is_over
    assert folded(posted(), sealed(1, 2), finished, sealed(2, 3, last=True)).is_over
    assert folded(posted(), sealed(1, 2), failed).is_over
