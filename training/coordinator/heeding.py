"""What the poster wants of a running job becomes events, and is reported once it is so.

The journal keeps what was heeded, not what was wished: a wish that is repeated, or found again
after a restart, changes nothing that is so already. A job that is cancelled, or past its deadline,
is not started again.
"""

from contracts.terms.moments import UnixMillis
from training.coordinator.book import Book
from training.coordinator.ports import Clock, Wish, Wishes
from training.swarm.events import Event, GoOnAsked, HoldAsked, StopAsked
from training.swarm.state import Finished, SwarmState
from training.telling import Tell


def asked_by(wish: Wish, state: SwarmState, at: UnixMillis) -> Event | None:
    """What is to happen so that the job comes to be as `wish` wants it; None if nothing more."""
    if state.stopping or isinstance(state.phase, Finished):
        return None
    match wish.wanted:
        case "paused" if state.hold_from is None:
            return HoldAsked(at)
        case "running" if state.hold_from is not None:
            return GoOnAsked(at)
        case "cancelled":
            return StopAsked(at)
    return None


def is_heeded(wish: Wish, state: SwarmState) -> bool:
    """Whether the job is as `wish` wants it."""
    match wish.wanted:
        case "paused":
            return state.is_held
        case "running":
            return state.hold_from is None
    return state.stopping


class Heeding:
    """Looks for the newest wish, again and again."""

    def __init__(self, book: Book, wishes: Wishes, *, clock: Clock, tell: Tell) -> None:
        self._book, self._wishes, self._clock, self._tell = book, wishes, clock, tell
        self._reported = 0  # number of the wish that the host was last told of, in this start

    def look(self) -> None:
        """Take the newest wish, and say if the job is as it wants."""
        wish = self._wishes.newest()
        if wish is None:
            return
        if (event := asked_by(wish, self._book.state, self._clock())) is not None:
            self._tell("wish", step=self._book.state.step, wanted=wish.wanted)
            self._book.record(event)
        if wish.number != self._reported and is_heeded(wish, self._book.state):
            self._wishes.heeded(wish.number)
            self._reported = wish.number
            self._tell("wish_heeded", step=self._book.state.step, wanted=wish.wanted)
