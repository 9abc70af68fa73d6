"""The life of a job, event by event."""

import itertools

import pytest

from contracts.terms.errors import Conflict
from market.domain.jobs import (
    Action,
    AskForHost,
    Cancelled,
    Closed,
    DeadlinePassed,
    EndLeases,
    Event,
    Funded,
    FundingRefused,
    JobState,
    LastSealed,
    Leased,
    LeaseLapsed,
    NoteFailure,
    Opened,
    Wanted,
    advance,
    is_hosted,
    takes_messages,
    wanted_after,
)

EVENTS: tuple[Event, ...] = (
    Funded(),
    Cancelled(),
    Leased(),
    LeaseLapsed(),
    Opened(),
    LastSealed(),
    DeadlinePassed(),
    FundingRefused("no"),
    Closed(),
)


def after(*events: Event) -> JobState:
    state = JobState.DRAFT
    for event in events:
        state, _ = advance(state, event)
    return state


def test_advance__a_job_that_goes_well__passes_every_state() -> None:
    seen = [JobState.DRAFT]
    for event in (Funded(), Leased(), Opened(), LastSealed(), Closed()):
        state, _ = advance(seen[-1], event)
        seen.append(state)

    assert seen == [
        JobState.DRAFT,
        JobState.FUNDED,
        JobState.MATCHED,
        JobState.RUNNING,
        JobState.FINISHED,
        JobState.CLOSED,
    ]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, EVENTS)))
def test_advance__event_told_twice__changes_nothing_more(state: JobState, event: Event) -> None:
    once, _ = advance(state, event)
    twice, effects = advance(once, event)

    assert twice == once
    assert not any(isinstance(effect, NoteFailure) for effect in effects)


@pytest.mark.parametrize("state", [s for s in JobState if s not in ("draft", "closed")])
def test_advance__closed_in_the_escrow__is_closed_and_frees(state: JobState) -> None:
    assert advance(state, Closed()) == (JobState.CLOSED, (EndLeases(),))


@pytest.mark.parametrize("event", EVENTS)
def test_advance__closed__is_the_end(event: Event) -> None:
    assert advance(JobState.CLOSED, event) == (JobState.CLOSED, ())


def test_advance__lease_lapsed_before_the_opening__looks_for_another() -> None:
    state, effects = advance(JobState.MATCHED, LeaseLapsed())

    assert (state, effects) == (JobState.FUNDED, ())


def test_advance__lease_lapsed_while_running__changes_nothing() -> None:
    assert advance(JobState.RUNNING, LeaseLapsed()) == (JobState.RUNNING, ())


@pytest.mark.parametrize("state", [JobState.FUNDED, JobState.MATCHED, JobState.RUNNING])
def test_advance__deadline_before_it_is_done__fails_and_frees(state: JobState) -> None:
    failed, effects = advance(state, DeadlinePassed())

    assert failed == JobState.FAILED
    assert EndLeases() in effects


def test_advance__permit_mined_after_the_job_failed__stays_failed() -> None:
    assert after(FundingRefused("no"), Funded()) == JobState.FAILED
    assert after(FundingRefused("no"), Funded(), Closed()) == JobState.CLOSED


def test_advance__matched__asks_for_a_host() -> None:
    assert advance(JobState.FUNDED, Leased())[1] == (AskForHost(),)


def test_advance__draft_is_cancelled__is_dropped_with_a_reason() -> None:
    state, (reason,) = advance(JobState.DRAFT, Cancelled())

    assert state == JobState.FAILED
    assert isinstance(reason, NoteFailure) and "cancelled" in reason.reason


@pytest.mark.parametrize("state", [JobState.FUNDED, JobState.MATCHED])
def test_advance__cancelled_before_it_was_opened__fails_and_frees(state: JobState) -> None:
    failed, effects = advance(state, Cancelled())

    assert failed == JobState.FAILED
    assert EndLeases() in effects


def test_advance__cancelled_while_running__goes_on_to_its_last_seal() -> None:
    assert advance(JobState.RUNNING, Cancelled()) == (JobState.RUNNING, ())


OVER = (JobState.FINISHED, JobState.CLOSED, JobState.FAILED)
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


def test_is_hosted__paused_or_cancelled__is_not_opened_and_goes_on_if_it_is() -> None:
    hosted = {each for each in itertools.product(JobState, Wanted) if is_hosted(*each)}

    for wanted in (Wanted.PAUSED, Wanted.CANCELLED):
        found = {state for state, each in hosted if each == wanted}
        assert found == {JobState.RUNNING, JobState.FINISHED}
    assert (JobState.MATCHED, Wanted.RUNNING) in hosted
    assert not any(state == JobState.CLOSED for state, _ in hosted)
    assert is_hosted(JobState.CLOSED, Wanted.RUNNING, may_vest=True)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CLOSED])
def test_takes_messages__over__only_what_follows_an_opening(state: JobState) -> None:
    assert takes_messages(state, is_open=True)
    assert not takes_messages(state, is_open=False)


def test_takes_messages__matched__takes_its_opening_and_funded_nothing() -> None:
    assert takes_messages(JobState.MATCHED, is_open=False)
    assert not any(takes_messages(JobState.FUNDED, is_open=each) for each in (False, True))
