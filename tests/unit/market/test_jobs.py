"""The life of a job, event by event."""

import itertools

import pytest

from market.domain.jobs import (
    AskForHost,
    CloseEscrow,
    CloseRequested,
    DeadlinePassed,
    EndLeases,
    Event,
    FindLeases,
    Funded,
    FundingRefused,
    JobState,
    LastSealed,
    Leased,
    LeaseLapsed,
    NoteFailure,
    Opened,
    RefundPaid,
    advance,
)

EVENTS: tuple[Event, ...] = (
    Funded(),
    Leased(),
    LeaseLapsed(),
    Opened(),
    LastSealed(),
    DeadlinePassed(),
    FundingRefused("no"),
    CloseRequested(),
    RefundPaid(),
)


def after(*events: Event) -> JobState:
    state = JobState.DRAFT
    for event in events:
        state, _ = advance(state, event)
    return state


def test_advance__a_job_that_goes_well__passes_every_state() -> None:
    seen = [JobState.DRAFT]
    for event in (Funded(), Leased(), Opened(), LastSealed(), CloseRequested(), RefundPaid()):
        state, _ = advance(seen[-1], event)
        seen.append(state)

    assert seen == [
        JobState.DRAFT,
        JobState.FUNDED,
        JobState.MATCHED,
        JobState.RUNNING,
        JobState.FINISHED,
        JobState.CLOSED,
        JobState.REFUNDED,
    ]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, EVENTS)))
def test_advance__event_told_twice__changes_nothing_more(state: JobState, event: Event) -> None:
    once, _ = advance(state, event)
    twice, effects = advance(once, event)

    assert twice == once
    assert not any(isinstance(effect, NoteFailure) for effect in effects)


@pytest.mark.parametrize("state", [s for s in JobState if s not in ("closed", "refunded")])
def test_advance__closed_on_chain_by_anybody__is_closed_and_frees(state: JobState) -> None:
    assert advance(state, CloseRequested()) == (JobState.CLOSED, (EndLeases(),))


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", [JobState.REFUNDED])
def test_advance__refunded__is_the_end(state: JobState, event: Event) -> None:
    assert advance(state, event) == (state, ())


def test_advance__lease_lapsed_before_the_opening__looks_for_another() -> None:
    state, effects = advance(JobState.MATCHED, LeaseLapsed())

    assert (state, effects) == (JobState.FUNDED, (FindLeases(),))


def test_advance__lease_lapsed_while_running__changes_nothing() -> None:
    assert advance(JobState.RUNNING, LeaseLapsed()) == (JobState.RUNNING, ())


@pytest.mark.parametrize("state", [JobState.FUNDED, JobState.MATCHED, JobState.RUNNING])
def test_advance__deadline_with_money_in_escrow__closes_and_frees(state: JobState) -> None:
    failed, effects = advance(state, DeadlinePassed())

    assert failed == JobState.FAILED
    assert {EndLeases(), CloseEscrow()} <= set(effects)


def test_advance__permit_mined_after_the_job_failed__money_goes_back() -> None:
    assert after(FundingRefused("no"), Funded()) == JobState.FAILED
    _, effects = advance(JobState.FAILED, Funded())
    assert effects == (CloseEscrow(),)
    assert after(FundingRefused("no"), Funded(), CloseRequested(), RefundPaid()) == (
        JobState.REFUNDED
    )


def test_advance__matched__asks_for_a_host() -> None:
    assert advance(JobState.FUNDED, Leased())[1] == (AskForHost(),)
