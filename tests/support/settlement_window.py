"""Until when an epoch can be objected to, and what becomes of it: twin of Settlement.sol. Pure.

    None --Proposed--> Posted --window over--> Final
    Posted --RejectionAnnounced, in the window--> Disputed
    Disputed --DebitsRejected, after the announcement and in the execution window--> Rejected
    Disputed --execution window over--> Final

Invariants: Final and Rejected never change; a pending epoch is never overwritten; a number is used
once, without gaps; an event that does not fit changes nothing (the contract reverts). Moments are
the chain's, Unix seconds; an end belongs to what follows it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from contracts.terms.ids import EpochNumber


class EpochState(StrEnum):
    """States of an epoch, named and ordered as in Settlement.sol."""

    NONE = "None"
    POSTED = "Posted"
    DISPUTED = "Disputed"
    FINAL = "Final"
    REJECTED = "Rejected"


@dataclass(frozen=True)
class Terms:
    """The protocol numbers that a window starts with, in seconds."""

    challenge_window: int
    announcement_window: int
    execution_window: int
    min_epoch_length: int


@dataclass(frozen=True)
class Window:
    """The newest epoch. Begin with `Window()`."""

    epoch: EpochNumber | None = None
    state: EpochState = EpochState.NONE
    ends_at: int = 0  # Posted: of the challenge window; Disputed: of the announcement
    executable_until: int = 0  # Disputed: end of the execution window
    next_at: int = 0  # earliest moment of the next proposal


@dataclass(frozen=True)
class Proposed:
    """The proposer posts an epoch."""

    epoch: EpochNumber
    at: int


@dataclass(frozen=True)
class RejectionAnnounced:
    """The disputes role objects, and says why."""

    epoch: EpochNumber
    at: int


@dataclass(frozen=True)
class DebitsRejected:
    """The disputes role executes its objection."""

    epoch: EpochNumber
    at: int


@dataclass(frozen=True)
class Ticked:
    """Time passes."""

    at: int


Event: TypeAlias = Proposed | RejectionAnnounced | DebitsRejected | Ticked


@dataclass(frozen=True)
class Finalize:
    """The epoch's root grants claims from now on, for ever."""

    epoch: EpochNumber


@dataclass(frozen=True)
class Restore:
    """The epoch's debits go back to their jobs."""

    epoch: EpochNumber


Effect: TypeAlias = Finalize | Restore


def advance(window: Window, event: Event, terms: Terms) -> tuple[Window, tuple[Effect, ...]]:
    """Apply one event; what time alone has decided is booked first."""
    window, booked = _booked(window, event.at)
    match window.state, event:
        case EpochState.POSTED, RejectionAnnounced(epoch, at) if epoch == window.epoch:
            ends_at = at + terms.announcement_window
            until = ends_at + terms.execution_window
            window = replace(
                window, state=EpochState.DISPUTED, ends_at=ends_at, executable_until=until
            )
        case EpochState.DISPUTED, DebitsRejected(epoch, at) if (
            epoch == window.epoch and at >= window.ends_at
        ):
            return replace(window, state=EpochState.REJECTED), (*booked, Restore(epoch))
        case ((EpochState.NONE | EpochState.FINAL | EpochState.REJECTED), Proposed(epoch, at)) if (
            epoch == (window.epoch or 0) + 1 and at >= window.next_at
        ):
            ends_at, next_at = at + terms.challenge_window, at + terms.min_epoch_length
            window = Window(epoch, EpochState.POSTED, ends_at, 0, next_at)
    return window, booked


def _booked(window: Window, at: int) -> tuple[Window, tuple[Effect, ...]]:
    """A pending epoch whose time is over is final, though nobody said so."""
    over = {EpochState.POSTED: window.ends_at, EpochState.DISPUTED: window.executable_until}
    if window.epoch is None or at < over.get(window.state, at + 1):
        return window, ()
    return replace(window, state=EpochState.FINAL), (Finalize(window.epoch),)
