"""Passes through the stages: each call goes to whom the balancer gives it, until one answers.

What a failed call means decides what happens next. The peer is too busy: another one, or later. A
tensor cannot be had: nobody's fault here, the caller has it made again. No answer in time: another
peer, as the authors of SWARM do. Anything else: the peer is banned until it is announced again. A
stage in which nobody may be asked is waited for; when that takes long, the caps of those that are
left are lifted pro rata (docs/protocol.md 7), so that a peer that never answers holds up nothing.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from contracts.terms import errors
from contracts.terms.digest import peer_id
from contracts.terms.ids import Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from training.swarm.routing import BACKWARD, FORWARD, Balancer, Listed
from training.telling import Tell
from training.trainer.sessions import Sessions
from training.trainer.ways import AskForward, Call, Passed, Stretch, check_answer
from training.transport import calls
from training.transport.port import Session
from training.transport.wire import ask

Pause = Callable[[float], Awaitable[None]]

SHORTEST, TIMES_USUAL = 5.0, 2.0  # seconds, and times what a pass usually takes: a call's deadline
EVALUATION_TIME = 30.0  # seconds: it waits behind all that is paid, and nothing waits for it
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
MOST_BLAME = 3  # complaints in a step
LIFT_AFTER = 5.0  # seconds in which nobody could be asked within the caps


class TensorLost(errors.Unavailable):
    """Peers that were asked could not get a tensor from any of its holders, or not use it.

    `by`: who says so.
    """

    def __init__(self, digest: Digest, by: frozenset[PeerId]) -> None:
        super().__init__("nobody who is reached has a tensor", digest=digest.hex())
        self.digest, self.by = digest, by


class Calling:
    """Calls of one kind to the workers of one job."""

    def __init__(
        self, job: JobId, sessions: Sessions, *, seed: int, tell: Tell, pause: Pause
    ) -> None:
        """`seed`: of the ties between equal peers; another one for each trainer of a job."""
        self._job, self._sessions, self._tell, self._pause = job, sessions, tell, pause
        self._seed = seed
        self._balancers: dict[StageIndex, Balancer] = {}
        self._workers: dict[PeerId, calls.WorkerView] = {}  # that may be given units now
        self._seen: dict[PeerId, tuple[StepNumber, calls.WorkerView]] = {}  # last listed when
        self._missing: Mapping[StageIndex, frozenset[ItemNumber]] = {}
        self._blamed: dict[PeerId, list[PeerId]] = {}  # in this step, by whom
        self._attempts: dict[ItemNumber, int] = {}
        self._attempts_from = 0
        self._open: Counter[PeerId] = Counter()  # calls that wait for an answer
        self._late: Counter[ItemNumber] = Counter()  # deadlines that passed in this step
        self._waited: dict[StageIndex, float] = {}  # seconds since somebody of it has answered
        self._step = StepNumber(0)

    # -------------------------------------------------------------------------------- who is there

    def announce(self, work: calls.StepWork) -> None:
        """Go by the workers and places of a StepWork from now on."""
        if work.step != self._step:
            self._attempts.clear()
            self._blamed.clear()
            self._late.clear()
        self._step, self._attempts_from = StepNumber(work.step), work.attempts_from
        self._workers = {peer_id(each.session_key): each for each in work.workers}
        self._remember()
        missing: dict[StageIndex, set[ItemNumber]] = {}
        for place in work.places:
            missing.setdefault(place.stage, set()).add(place.unit)
        self._missing = {stage: frozenset(units) for stage, units in missing.items()}
        for stage in {*self._balancers, *(each.stage for each in work.workers)}:
            self._list(stage, version=work.attempts_from)

    def _remember(self) -> None:
        """Who is not listed for a moment, as at the beginning of a step, is as fast as before."""
        self._seen |= {peer: (self._step, each) for peer, each in self._workers.items()}
        self._seen = {
            peer: (step, each)
            for peer, (step, each) in self._seen.items()
            if step + 1 >= self._step
        }

    def _list(self, stage: StageIndex, *, version: int, times: int = 1) -> None:
        asked = self._asked(stage)
        listed = [
            Listed(peer, each.rate, max(times - 1, each.quota * times), each.counted)
            if peer in asked
            else Listed(peer, each.rate, quota=0)
            for peer, (_, each) in self._seen.items()
            if each.stage == stage
        ]
        self._balancers[stage] = self._balancer(stage).announced(
            listed, step=self._step, version=version, missing=self._missing.get(stage, ())
        )

    async def _choose(
        self, stage: StageIndex, unit: ItemNumber, samples: float, avoid: Iterable[PeerId]
    ) -> PeerId:
        """Whom to ask, as soon as somebody may be asked.

        What was waited for is remembered until somebody answers: else a peer that comes back only
        to fail again would keep the caps of the others as they are.
        """
        span = FIRST_PAUSE
        while True:
            after, peer = self._balancer(stage).choose(unit, samples, avoid=avoid)
            self._balancers[stage] = after
            if peer is not None:
                return peer
            await self._wait(stage, span)
            span, avoid = min(2 * span, LONGEST_PAUSE), ()
            times = 1 + int(self._waited.get(stage, 0.0) / LIFT_AFTER)
            self._list(stage, version=self._balancers[stage].version + 1, times=times)

    async def _wait(self, stage: StageIndex, span: float) -> None:
        """Let time pass; calls that wait side by side do not make it pass faster."""
        begun = self._waited.get(stage, 0.0)
        await self._pause(span)
        if self._waited.get(stage, 0.0) >= begun:  # else somebody has answered meanwhile
            self._waited[stage] = max(self._waited.get(stage, 0.0), begun + span)

    # --------------------------------------------------------------------------------------- asking

    async def go(self, stretch: Stretch, call: Call) -> Passed:
        """One pass through a stage, tried until it has an answer.

        Raises:
            TensorLost: two peers, or all that there are, cannot get what it is to be made of.
        """
        sticky = None if isinstance(call, AskForward) else call.sticky
        samples = _samples(stretch, call)
        avoid: set[PeerId] = set()
        without: set[PeerId] = set()
        while True:
            if sticky is not None and self._may_ask(call.stage, sticky.peer):
                peer, attempt = sticky.peer, sticky.attempt
                charged = self._balancer(call.stage).charged(peer, samples)
                self._balancers[call.stage] = charged
            else:
                peer = await self._choose(call.stage, stretch.unit, samples, avoid)
                attempt = self._next_attempt(stretch.unit)
            sticky = None
            try:
                return await self._pass(stretch, call, peer, attempt, samples)
            except errors.TallystickError as error:  # whoever is at fault: somebody else is asked
                self._note_failure(stretch.unit, call.stage, peer, error)
                avoid.add(peer)
                if (missing := _missing_tensor(error, call)) is not None:
                    # One that is asked a second time is the only one with room in its cap.
                    is_certain = peer in without or len(without | {peer}) > 1
                    without.add(peer)
                    if is_certain or not self._others(call.stage, without):
                        raise TensorLost(missing, frozenset(without)) from error

    def blame(self, unit: ItemNumber, peers: Iterable[PeerId], by: Iterable[PeerId]) -> None:
        """What these peers have cannot be fetched from them: ask others, where there are any."""
        peers = tuple(peers)
        for peer in peers:
            self._blamed.setdefault(peer, []).extend(by)
        for stage, balancer in self._balancers.items():
            for peer in peers:
                balancer = balancer.failed(unit, peer)
            self._balancers[stage] = balancer

    def _asked(self, stage: StageIndex) -> set[PeerId]:
        """Workers of a stage but the useless ones; all of them where nobody else is left."""
        workers = {peer for peer, each in self._workers.items() if each.stage == stage}
        return {peer for peer in workers if not self._is_useless(peer)} or workers

    def _is_useless(self, peer: PeerId) -> bool:
        """Whether a peer is not asked for the rest of the step.

        One that makes what nobody can use answers quickly, again and again; without it the caps of
        the others are lifted, as if it were silent. What one receiver says alone may be its own
        fault.
        """
        by = self._blamed.get(peer, ())
        return len(by) >= MOST_BLAME and len(set(by)) > 1

    async def _pass(
        self, stretch: Stretch, call: Call, peer: PeerId, attempt: int, samples: float
    ) -> Passed:
        began = time.monotonic()
        self._open[peer] += 1
        try:
            computed = await self._compute(stretch, call, peer, attempt, samples)
        finally:
            self._open[peer] -= 1
        check_answer(stretch, call, computed)
        seconds = time.monotonic() - began
        self._change(call.stage, lambda b: b.answered(peer, samples, seconds))
        self._waited.pop(call.stage, None)
        return Passed(peer, attempt, computed)

    def _deadline(self, stage: StageIndex, unit: ItemNumber, peer: PeerId, samples: float) -> float:
        """Seconds after which another peer is asked.

        What a peer was measured to take includes its queue; before its first answer ours is added.
        Where everybody is slow a deadline that has passed doubles the next one of its unit.
        """
        entry = self._balancer(stage).entries.get(peer)
        if entry is None:
            return SHORTEST
        usual = samples / entry.speed.samples_per_second
        if not entry.speed.num_updates:
            usual *= max(1, self._open[peer])
        return float(max(SHORTEST, TIMES_USUAL * usual) * 2 ** self._late[unit])

    async def _compute(
        self, stretch: Stretch, call: Call, peer: PeerId, attempt: int, samples: float
    ) -> calls.Computed:
        deadline = self._deadline(call.stage, stretch.unit, peer, samples)
        session = await self._session(peer)
        if isinstance(call, AskForward):
            forward = calls.Forward(
                job=self._job,
                step=self._step,
                stage=call.stage,
                unit=stretch.unit,
                attempt=attempt,
                x=call.x,
                evaluate=False,
                dx=call.dx,
            )
            computed, _ = await ask(session, calls.FORWARD, forward, deadline=deadline)
            return computed
        backward = calls.Backward(
            job=self._job,
            step=self._step,
            stage=call.stage,
            unit=stretch.unit,
            attempt=attempt,
            x=call.x,
            dy=call.dy,
            y=call.y,
            dx=call.dx,
        )
        computed, _ = await ask(session, calls.BACKWARD, backward, deadline=deadline)
        return computed

    async def evaluate(
        self, step: StepNumber, group: ItemNumber, stage: StageIndex, x: calls.Held | None
    ) -> tuple[PeerId, calls.Computed]:
        """Forward pass of a group of validation rows through one stage, by whom may be asked.

        Raises:
            TallystickError: it did not go well.
        """
        peer = await self._choose(stage, group, FORWARD, ())
        began = time.monotonic()
        try:
            session = await self._session(peer)
            request = calls.Forward(
                job=self._job, step=step, stage=stage, unit=group, attempt=0, x=x, evaluate=True
            )
            usual = self._deadline(stage, group, peer, FORWARD)
            deadline = max(EVALUATION_TIME, usual)
            computed, _ = await ask(session, calls.FORWARD, request, deadline=deadline)
        except errors.TallystickError as error:
            self._note_failure(group, stage, peer, error)
            raise
        seconds = time.monotonic() - began
        self._change(stage, lambda b: b.answered(peer, FORWARD, seconds).released(group, peer))
        return peer, computed

    # ------------------------------------------------------------------------------- afterwards

    def _note_failure(
        self, unit: ItemNumber, stage: StageIndex, peer: PeerId, error: errors.TallystickError
    ) -> None:
        about = {"step": self._step, "stage": stage, "unit": unit, "peer": peer}
        self._tell("unit_failed", code=error.code, reason=error.message, **about)
        if isinstance(error, errors.Overloaded) or "digest" in error.data:
            self._change(stage, lambda b: b.released(unit, peer))
        else:
            late = isinstance(error, errors.DeadlineExceeded)
            self._late[unit] += late
            self._change(stage, lambda b: b.failed(unit, peer, by_deadline=late))

    def _change(self, stage: StageIndex, change: Callable[[Balancer], Balancer]) -> None:
        self._balancers[stage] = change(self._balancer(stage))

    def _balancer(self, stage: StageIndex) -> Balancer:
        return self._balancers.get(stage, Balancer(self._seed + stage))

    async def _session(self, peer: PeerId) -> Session:
        if peer not in self._seen:
            raise errors.PeerUnreachable("the peer is no worker any more", peer=peer.hex())
        _, worker = self._seen[peer]
        return await self._sessions.to(worker.session_key, worker.address)

    def _may_ask(self, stage: StageIndex, peer: PeerId) -> bool:
        """Whether it may end what it has begun: also one that wants to leave, if it is here."""
        entry = self._balancer(stage).entries.get(peer)
        if entry is None or entry.banned:
            return False
        return peer in self._workers or self._sessions.is_open(self._seen[peer][1].session_key)

    def _others(self, stage: StageIndex, without: set[PeerId]) -> bool:
        entries = self._balancer(stage).entries
        able = (peer for peer in self._workers if peer in entries and not entries[peer].banned)
        return any(peer not in without for peer in able)

    def _next_attempt(self, unit: ItemNumber) -> int:
        self._attempts[unit] = max(self._attempts.get(unit, 0) + 1, self._attempts_from)
        return self._attempts[unit]


def _samples(stretch: Stretch, call: Call) -> float:
    if not isinstance(call, AskForward):
        return BACKWARD
    return FORWARD + BACKWARD if stretch.ends_at(call.stage) else FORWARD


def _missing_tensor(error: errors.TallystickError, call: Call) -> Digest | None:
    """The tensor of this call that the peer says it cannot get."""
    wanted = [call.x] if isinstance(call, AskForward) else [call.x, call.dy]
    named = error.data.get("digest")
    return next((held.digest for held in wanted if held and held.digest.hex() == named), None)
