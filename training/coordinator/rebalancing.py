"""Peers move to the group that holds up the others; `strategies.every_step.rebalance` says who.

A move is a departure and a return: the member is let go as if it had asked to, so its work of the
round is still claimed and merged; then its session is closed, it joins anew, and finds its place in
the other group, whose state it loads. A coordinator that starts again forgets a move on its way,
and the peer returns to the group that it came from.
"""

from collections.abc import Callable, Mapping

from contracts.terms.ids import PeerId, SessionKey
from contracts.terms.moments import UnixMillis
from contracts.terms.work import WorkClaim
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock
from training.rounds.events import LeaveAsked
from training.rounds.state import NO_ROUND, Work
from training.strategies.every_step.rebalance import rebalance
from training.strategies.port import Group
from training.telling import Tell
from training.transport.port import Session

PERIOD = 300_000
"""Milliseconds between two moves: T = 300 s, as in SWARM's experiment with Algorithm 2."""


class Rebalancing:
    """Of one start of a coordinator."""

    def __init__(
        self,
        job: JobJournal,
        sessions: Callable[[], Mapping[SessionKey, Session]],
        *,
        period: int,
        clock: Clock,
        tell: Tell,
    ) -> None:
        """`period`: see `PERIOD`."""
        self._job, self._sessions = job, sessions
        self._period, self._clock, self._tell = period, clock, tell
        self._since: UnixMillis | None = None
        self._looked_in = NO_ROUND
        self._moving: PeerId | None = None
        self.targets: dict[PeerId, Group] = {}
        """Peers that come back to another group, or have."""

    async def run(self) -> None:
        """Look whenever something has changed; for ever."""
        changes = self._job.changes
        while True:
            seen = changes.version
            await self._look()
            await changes.beyond(seen)

    async def _look(self) -> None:
        state, now = self._job.state, self._clock()
        if self._moving is not None:
            if self._moving not in state.members:
                session = self._sessions().get(self._job.key_of(self._moving))
                self._moving = None
                if session is not None:
                    await session.close()
            return
        is_at_work = isinstance(state.phase, Work) and state.started and not state.draining
        if not is_at_work or state.round == self._looked_in:
            return
        self._looked_in = state.round
        if self._since is None:
            self._since = now
        flops, since_move = self._job.record_of_job.spec.item_flops, now - self._since
        # Rates of when each joined: how long a pass takes later depends on who waits for whom.
        move = rebalance(
            state.members.values(),
            flops,
            since_move=since_move,
            period=self._period,
            pending={signed.message.peer for signed in self._job.pending(WorkClaim)},
        )
        if move is None:
            return
        self._since, self._moving = now, move.peer
        self.targets[move.peer] = move.target
        about = {"peer": move.peer, "stage": move.source, "target": move.target}
        self._tell("peer_moves", step=state.round, **about)
        self._job.record(LeaveAsked(move.peer, now))
