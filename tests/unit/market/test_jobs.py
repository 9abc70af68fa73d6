"""The life of a job, event by event."""

import itertools
from typing import get_args

import pytest

from contracts.terms.errors import Conflict
from market.bodies.jobs import JobAction
from market.domain.jobs import (
    Effect,
    Event,
    FundingRefused,
    JobState,
    Wanted,
    advance,
    is_hosted,
    takes_messages,
    wanted_after,
)

EVENTS: tuple[Event, ...] = (
    "funded",
    "cancelled",
    "leased",
    "lease_lapsed",
    "opened",
    "last_sealed",
    "deadline_passed",
    FundingRefused("no"),
    "closed",
)


def named(it: Event | Effect) -> str:
    """What it is, without its reason."""
    return it if isinstance(it, str) else type(it).__name__


def test_advance__each_state_and_event__is_the_table() -> None:
    went_on = {
        (state.value, named(event)): (after.value, *map(named, effects))
        for state, event in itertools.product(JobState, EVENTS)
        for after, effects in [advance(state, event)]
        if after != state or effects
    }

    assert went_on == {
        ("draft", "funded"): ("funded",),
        ("draft", "FundingRefused"): ("failed", "NoteFailure"),
        ("draft", "deadline_passed"): ("failed", "NoteFailure"),
        ("draft", "cancelled"): ("failed", "NoteFailure"),
        ("funded", "leased"): ("matched", "ask_for_host"),
        ("funded", "deadline_passed"): ("failed", "NoteFailure", "end_leases"),
        ("funded", "cancelled"): ("failed", "NoteFailure", "end_leases"),
        ("funded", "closed"): ("closed", "end_leases"),
        ("matched", "lease_lapsed"): ("funded",),
        ("matched", "opened"): ("running",),
        ("matched", "deadline_passed"): ("failed", "NoteFailure", "end_leases"),
        ("matched", "cancelled"): ("failed", "NoteFailure", "end_leases"),
        ("matched", "closed"): ("closed", "end_leases"),
        ("running", "last_sealed"): ("finished", "end_leases"),
        ("running", "deadline_passed"): ("failed", "NoteFailure", "end_leases"),
        ("running", "closed"): ("closed", "end_leases"),
        ("finished", "closed"): ("closed", "end_leases"),
        ("failed", "closed"): ("closed", "end_leases"),
    }


OVER = (JobState.FINISHED, JobState.CLOSED, JobState.FAILED)


@pytest.mark.parametrize("wanted", [Wanted.RUNNING, Wanted.PAUSED])
def test_wanted_after__a_job_that_goes_on__is_wanted_as_was_asked(wanted: Wanted) -> None:
    for state in set(JobState).difference(OVER):
        found = [wanted_after(state, wanted, action) for action in get_args(JobAction)]

        assert found == [Wanted.PAUSED, Wanted.RUNNING, Wanted.CANCELLED]


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("action", get_args(JobAction))
def test_wanted_after__job_is_over__is_a_conflict(state: JobState, action: JobAction) -> None:
    with pytest.raises(Conflict, match=state.value):
        wanted_after(state, Wanted.RUNNING, action)


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_wanted_after__cancelled__is_for_good(action: JobAction) -> None:
    with pytest.raises(Conflict, match="for good"):
        wanted_after(JobState.RUNNING, Wanted.CANCELLED, action)

    assert wanted_after(JobState.RUNNING, Wanted.CANCELLED, "cancel") == Wanted.CANCELLED


def test_is_hosted__paused_or_cancelled__is_not_opened_and_goes_on_if_it_is() -> None:
    hosted = {each for each in itertools.product(JobState, Wanted) if is_hosted(*each)}

    for wanted in (Wanted.PAUSED, Wanted.CANCELLED):
        found = {state for state, each in hosted if each == wanted}
        assert found == {JobState.RUNNING, JobState.FINISHED}
    assert (JobState.MATCHED, Wanted.RUNNING) in hosted
    assert not any(state == JobState.CLOSED for state, _ in hosted)
    assert is_hosted(JobState.CLOSED, Wanted.RUNNING, may_vest=True)


@pytest.mark.parametrize(
    ("is_open", "states"),
    [(False, "matched"), (True, "matched running finished closed failed")],
)
def test_takes_messages__in_each_state__its_opening_and_what_follows_it(
    is_open: bool, states: str
) -> None:
    assert [each for each in JobState if takes_messages(each, is_open=is_open)] == states.split()
