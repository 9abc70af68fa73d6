"""The challenge window, event by event."""

import pytest

from contracts.governance.window import (
    DebitsRejected,
    Effect,
    EpochState,
    Event,
    Finalize,
    Proposed,
    RejectionAnnounced,
    Restore,
    Terms,
    Ticked,
    Window,
    advance,
)
from contracts.terms.ids import EpochNumber

TERMS = Terms(challenge_window=5, announcement_window=10, execution_window=20, min_epoch_length=3)
ONE, TWO = EpochNumber(1), EpochNumber(2)


def run(*events: Event) -> tuple[Window, list[Effect]]:
    window, effects = Window(), list[Effect]()
    for event in events:
        window, more = advance(window, event, TERMS)
        effects += more
    return window, effects


@pytest.mark.parametrize(
    ("events", "state", "effects"),
    [
        ((), EpochState.NONE, []),
        ((Proposed(TWO, 100),), EpochState.NONE, []),
        ((Proposed(ONE, 100),), EpochState.POSTED, []),
        ((Proposed(ONE, 100), Ticked(104)), EpochState.POSTED, []),
        ((Proposed(ONE, 100), Ticked(105)), EpochState.FINAL, [Finalize(ONE)]),
        ((Proposed(ONE, 100), RejectionAnnounced(ONE, 104)), EpochState.DISPUTED, []),
        ((Proposed(ONE, 100), RejectionAnnounced(TWO, 104)), EpochState.POSTED, []),
        (
            (Proposed(ONE, 100), RejectionAnnounced(ONE, 105)),
            EpochState.FINAL,
            [Finalize(ONE)],
        ),
        (
            (Proposed(ONE, 100), RejectionAnnounced(ONE, 104), DebitsRejected(ONE, 113)),
            EpochState.DISPUTED,
            [],
        ),
        (
            (Proposed(ONE, 100), RejectionAnnounced(ONE, 104), DebitsRejected(ONE, 114)),
            EpochState.REJECTED,
            [Restore(ONE)],
        ),
        (
            (Proposed(ONE, 100), RejectionAnnounced(ONE, 104), DebitsRejected(ONE, 134)),
            EpochState.FINAL,
            [Finalize(ONE)],
        ),
    ],
)
def test_advance__events__lead_to_state(
    events: tuple[Event, ...], state: EpochState, effects: list[Effect]
) -> None:
    window, happened = run(*events)

    assert (window.state, happened) == (state, effects)


def test_advance__proposal_while_one_is_pending__changes_nothing() -> None:
    window, _ = run(Proposed(ONE, 100), Proposed(TWO, 104))

    assert window.epoch == 1


def test_advance__proposal_when_the_window_is_over__finalizes_first() -> None:
    window, effects = run(Proposed(ONE, 100), Proposed(TWO, 105))

    assert (window.epoch, window.state) == (2, EpochState.POSTED)
    assert effects == [Finalize(ONE)]


def test_advance__proposal_after_a_rejection__takes_the_next_number() -> None:
    window, _ = run(
        Proposed(ONE, 100),
        RejectionAnnounced(ONE, 101),
        DebitsRejected(ONE, 120),
        Proposed(ONE, 200),
        Proposed(TWO, 200),
    )

    assert (window.epoch, window.state) == (2, EpochState.POSTED)


def test_advance__proposal_before_the_minimal_length__changes_nothing() -> None:
    terms = Terms(2, 10, 20, 50)
    window, _ = advance(Window(), Proposed(ONE, 100), terms)

    window, _ = advance(window, Proposed(TWO, 149), terms)
    assert (window.epoch, window.state) == (1, EpochState.FINAL)

    window, _ = advance(window, Proposed(TWO, 150), terms)
    assert (window.epoch, window.state) == (2, EpochState.POSTED)
