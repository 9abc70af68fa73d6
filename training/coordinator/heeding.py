"""What the poster wants of a running job becomes events, and is reported once it is so.

The journal keeps what was heeded, not what was wished: a wish that is repeated, or found again
after a restart, changes nothing that is so already. A job that is cancelled, or past its deadline,
is not started again.
"""

from contracts.terms.moments import UnixMillis
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock, Wish, Wishes
from training.rounds.events import Controlled, Event
from training.rounds.state import Finished, RoundState
from training.telling import Tell


def asked_by(wish: Wish, state: RoundState, at: UnixMillis) -> Event | None:
    """What is to happen so that the job comes to be as `wish` wants it; None if nothing more."""
    if state.stopping or isinstance(state.phase, Finished):
        return None
    match wish.wanted:
        case "paused" if state.hold_from is None:
            return Controlled("hold", at)
        case "running" if state.hold_from is not None:
            return Controlled("go_on", at)
        case "cancelled":
            return Controlled("stop", at)
    return None


def is_heeded(wish: Wish, state: RoundState) -> bool:
    """Whether the job is as `wish` wants it."""
    match wish.wanted:
        case "paused":
            return state.is_held
        case "running":
            return state.hold_from is None
    return state.stopping


class Heeding:
    """Looks for the newest wish, again and again."""

    def __init__(self, job: JobJournal, wishes: Wishes, *, clock: Clock, tell: Tell) -> None:
        self._job, self._wishes, self._clock, self._tell = job, wishes, clock, tell
        self._reported = 0  # number of the wish that the host was last told of, in this start

    def look(self) -> None:
        """Take the newest wish, and say if the job is as it wants."""
        wish = self._wishes.newest()
        if wish is None:
            return
        if (event := asked_by(wish, self._job.state, self._clock())) is not None:
            self._tell("wish", step=self._job.state.round, wanted=wish.wanted)
            self._job.record(event)
        if wish.number != self._reported and is_heeded(wish, self._job.state):
            self._wishes.heeded(wish.number)
            self._reported = wish.number
            self._tell("wish_heeded", step=self._job.state.round, wanted=wish.wanted)
