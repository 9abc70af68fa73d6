"""What the poster wants of a running job becomes events, and is reported once it is so.

The journal keeps what was heeded, not what was wished: a wish that is repeated, or found again
after a restart, changes nothing that is so already. A job that is cancelled, or past its deadline,
is not started again.
"""

from contracts.terms.moments import UnixMillis
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock, Wish, Wishes
from training.rounds.events import Controlled, Event
from training.rounds.state import LONG_AGO, Finished, RoundState
from training.strategies.port import Group
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


def groups_without_state(state: RoundState) -> tuple[Group, ...]:
    """Groups of which nobody who is connected has a state that it can go on from.

    Who lost it, or was away for so long that others dropped what comes after it, has applied 0.
    """
    if not state.started or isinstance(state.phase, Finished):
        return ()
    members = state.members.values()
    least = min(1, state.round - 1)  # before the first seal everybody draws it
    have = {m.group for m in members if m.is_here and m.applied >= least}
    return tuple(group for group in state.terms.groups if group not in have)


class Heeding:
    """Looks for the newest wish, and says why the job stands still, again and again."""

    def __init__(self, job: JobJournal, wishes: Wishes, *, clock: Clock, tell: Tell) -> None:
        self._job, self._wishes, self._clock, self._tell = job, wishes, clock, tell
        self._reported = 0  # number of the wish that the host was last told of, in this start
        self._lacking: tuple[Group, ...] = ()
        self._since = LONG_AGO  # when they began to lack it
        self._why = ""

    def look(self) -> None:
        """Take the newest wish, and say if the job is as it wants, or stands still."""
        self._look_at_groups()
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

    def _look_at_groups(self) -> None:
        """A group that lacks its state for longer than `lease_grace` is worth words."""
        state, now = self._job.state, self._clock()
        lacking, why = groups_without_state(state), ""
        if lacking != self._lacking:
            self._lacking, self._since = lacking, now
        if lacking and now >= self._since + state.terms.lease_grace:
            why = (
                f"nobody connected has the newest weights of stage {', '.join(map(str, lacking))}; "
                "it goes on once a peer that had them is back"
            )
        if why != self._why:
            self._wishes.stands_still(why)
            self._tell("stands_still" if why else "goes_on", step=state.round, stages=lacking)
            self._why = why
