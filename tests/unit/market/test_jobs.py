"""The life of a job, event by event."""

import itertools

import pytest

from contracts.terms.errors import Conflict
from market.domain.jobs import (
    Action,
    AskForHost,
    Cancelled,
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
    Wanted,
    advance,
    is_hosted,
    takes_messages,
    wanted_after,
)

EVENTS: tuple[Event, ...] = (
    Funded(),
    Funded(cancelled=True),
    Cancelled(),
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


def test_advance__draft_is_cancelled__is_dropped_with_a_reason() -> None:
    state, (reason,) = advance(JobState.DRAFT, Cancelled())

    assert state == JobState.FAILED
    assert isinstance(reason, NoteFailure) and "cancelled" in reason.reason


def test_advance__dropped_draft_is_funded_after_all__goes_to_a_host_that_ends_it() -> None:
    state, effects = advance(after(Cancelled()), Funded(cancelled=True))

    assert (state, effects) == (JobState.FUNDED, (AskForHost(),))
    ends = (Opened(), LastSealed(), CloseRequested(), RefundPaid())
    assert after(Cancelled(), Funded(cancelled=True), *ends) == JobState.REFUNDED


def test_advance__cancelled_before_it_is_matched__frees_its_leases_and_is_ended_by_a_host() -> None:
    assert advance(JobState.FUNDED, Cancelled()) == (
        JobState.FUNDED,
        (EndLeases(), AskForHost()),
    )
    assert after(Funded(), Cancelled(), Opened(), LastSealed()) == JobState.FINISHED


OVER = (JobState.FINISHED, JobState.CLOSED, JobState.REFUNDED, JobState.FAILED)
GOING = tuple(state for state in JobState if state not in OVER)


@pytest.mark.parametrize("state", GOING)
@pytest.mark.parametrize("wanted", [Wanted.RUNNING, Wanted.PAUSED])
def test_wanted_after__a_job_that_goes_on__is_wanted_as_was_asked(
    state: JobState, wanted: Wanted
) -> None:
    found = [wanted_after(state, wanted, action) for action in Action]

    assert found == [Wanted.PAUSED, Wanted.RUNNING, Wanted.CANCELLED]


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("action", Action)
def test_wanted_after__job_is_over__is_a_conflict(state: JobState, action: Action) -> None:
    with pytest.raises(Conflict, match=state.value):
        wanted_after(state, Wanted.RUNNING, action)


@pytest.mark.parametrize("action", [Action.PAUSE, Action.RESUME])
def test_wanted_after__cancelled__is_for_good(action: Action) -> None:
    with pytest.raises(Conflict, match="for good"):
        wanted_after(JobState.RUNNING, Wanted.CANCELLED, action)

    assert wanted_after(JobState.RUNNING, Wanted.CANCELLED, Action.CANCEL) == Wanted.CANCELLED


def test_is_hosted__paused_or_cancelled__is_opened_to_be_ended_and_for_nothing_else() -> None:
    hosted = {each for each in itertools.product(JobState, Wanted) if is_hosted(*each)}

    assert (JobState.MATCHED, Wanted.PAUSED) not in hosted
    assert (JobState.RUNNING, Wanted.PAUSED) in hosted
    assert {state for state, wanted in hosted if wanted == Wanted.CANCELLED} == {
        JobState.FUNDED,
        JobState.MATCHED,
        JobState.RUNNING,
        JobState.FINISHED,
    }


def test_takes_messages__funded__only_of_a_cancelled_job() -> None:
    assert takes_messages(JobState.FUNDED, Wanted.CANCELLED)
    assert not takes_messages(JobState.FUNDED, Wanted.RUNNING)
    assert not takes_messages(JobState.FUNDED, Wanted.PAUSED)
