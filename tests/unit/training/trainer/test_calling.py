"""Whom a trainer calls, and what a failed call means."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import cast

import pytest
from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.ids import ZERO_DIGEST, JobId, PeerId, SessionKey, StageIndex
from contracts.terms.items import ItemNumber
from tests.support.history import make_digest, make_session
from training.telling import tell_nobody
from training.trainer.calling import LIFT_AFTER, Calling, Pause, TensorLost
from training.trainer.sessions import Sessions
from training.trainer.ways import AskBackward, AskForward, Passed, Stretch
from training.transport.calls import Computed, Forward, Held, PlaceView, StepWork, WorkerView
from training.transport.port import Deadline, Reply, Session

JOB = JobId(bytes(32))
UNIT, STAGE = ItemNumber(0), StageIndex(1)
X, Y, DY, DX = (make_digest(name) for name in ("x", "y", "dy", "dx"))
ANN, BOB = make_session("ann"), make_session("bob")
HOLDERS = (make_session("holder").peer,)
MIDDLE = Stretch(UNIT, StageIndex(0), StageIndex(2))
FORWARD = AskForward(STAGE, Held(digest=X, holders=HOLDERS))
GOOD = Computed(x=X, y=Y, dy=ZERO_DIGEST, dx=ZERO_DIGEST, loss=None)
BACK = Computed(x=X, y=Y, dy=DY, dx=DX, loss=None)


class Peer:
    """A session that answers as it is told, then well."""

    def __init__(self, *first: errors.TallystickError | Computed) -> None:
        self._first = list(first)
        self.attempts: list[int] = []
        self.deadlines: list[Deadline] = []

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        answer_bytes: int | None = None,
    ) -> Reply:
        """See `port.Session.call`."""
        self.deadlines.append(deadline)
        forward = method == "stage.forward"
        if forward:
            self.attempts.append(Forward.decoded(header, max_bytes=4096).attempt)
        answer = self._first.pop(0) if self._first else GOOD if forward else BACK
        if isinstance(answer, errors.TallystickError):
            raise answer
        return Reply(answer.encoded(), ())


class FakeSessions:
    """Sessions to peers that are there from the start."""

    def __init__(self, **peers: Peer) -> None:
        self._peers = {make_session(name).key: peer for name, peer in peers.items()}

    async def to(self, key: SessionKey, address: str) -> Session:
        """See `Sessions.to`."""
        return cast(Session, self._peers[key])

    def is_open(self, key: SessionKey) -> bool:
        """See `Sessions.is_open`."""
        return key in self._peers


async def _at_once(_span: float) -> None:
    """A pause that takes no time."""


class World:
    """A `Calling` with a stage of peers, and the pauses that it made."""

    def __init__(self, *, quota: int = 4, rate: int = 10**6, **peers: Peer) -> None:
        self.pauses: list[float] = []
        self.pause: Pause = _at_once
        self.peers = peers
        sessions = cast(Sessions, FakeSessions(**peers))
        self.calling = Calling(JOB, sessions, seed=1, tell=tell_nobody, pause=self._pause)
        self.announce(*peers, quota=quota, rate=rate)

    async def _pause(self, span: float) -> None:
        self.pauses.append(span)
        await self.pause(span)

    def announce(
        self,
        *names: str,
        quota: int = 4,
        full: Sequence[str] = (),
        version: int = 1000,
        rate: int = 10**6,
    ) -> None:
        """A StepWork with these workers, of whom some have had their quota."""
        workers = tuple(
            WorkerView(
                session_key=make_session(name).key,
                stage=STAGE,
                address="memory:1",
                rate=rate,
                quota=quota,
                counted=quota if name in full else 0,
            )
            for name in names
        )
        self.calling.announce(
            StepWork(
                version=1,
                step=1,
                attempts_from=version,
                places=(PlaceView(stage=STAGE, unit=UNIT),),
                copies=(),
                workers=workers,
                validate_after=0,
                validation_groups=1,
                finished=False,
            )
        )

    async def forward(self) -> PeerId:
        """Who answered."""
        return (await self.calling.go(MIDDLE, FORWARD)).peer

    @property
    def num_calls(self) -> dict[str, int]:
        """Forward calls that each peer got."""
        return {name: len(peer.attempts) for name, peer in self.peers.items()}


@pytest.mark.parametrize(
    "error",
    [
        errors.Overloaded("full"),
        errors.DeadlineExceeded("late"),
        errors.PeerUnreachable("gone"),
        errors.NotFound("nobody has it", digest=X.hex()),
    ],
)
async def test_calling__one_peer_fails__the_other_answers_at_once(
    error: errors.TallystickError,
) -> None:
    world = World(ann=Peer(error), bob=Peer())

    for _ in range(2):
        await world.forward()

    assert world.num_calls["ann"] >= 1, "its turn has to come"
    assert world.num_calls["bob"] >= 1
    assert world.pauses == []


async def test_calling__slow_peer__has_twice_what_a_pass_was_measured_to_take() -> None:
    ann = Peer()
    world = World(ann=ann, rate=35_000)  # a unit of 3.5 samples in 28.6 s: forward in 8.2 s

    await world.forward()

    assert ann.deadlines[0] == pytest.approx(2 * 10**6 / 35_000 / 3.5)


async def test_calling__deadline_passed__the_next_one_of_its_unit_is_twice_as_long() -> None:
    world = World(ann=Peer(errors.DeadlineExceeded("late"), errors.DeadlineExceeded("late")))

    await world.forward()

    assert world.peers["ann"].deadlines == [5.0, 10.0, 20.0]


async def test_calling__answer_that_does_not_fit__its_peer_is_not_asked_again() -> None:
    bad = GOOD.model_copy(update={"x": Y})
    world = World(ann=Peer(*[bad] * 9), bob=Peer())

    peers = [await world.forward() for _ in range(6)]

    assert peers == [BOB.peer] * 6
    assert world.num_calls["ann"] <= 1


async def test_calling__banned_peer_announced_again__is_asked_again() -> None:
    world = World(ann=Peer(errors.PeerUnreachable("gone")))
    assert await world.forward() == ANN.peer  # after a pause: nobody else is there
    assert world.pauses == [0.1]

    other = World(ann=Peer(errors.PeerUnreachable("gone")), bob=Peer())
    await other.forward()
    await other.forward()
    other.announce("ann", "bob", version=2000)

    assert {await other.forward() for _ in range(4)} == {ANN.peer, BOB.peer}


async def test_calling__two_peers_cannot_get_a_tensor__it_is_lost() -> None:
    missing = errors.NotFound("nobody has it", digest=X.hex())
    world = World(ann=Peer(missing), bob=Peer(missing))

    with pytest.raises(TensorLost) as caught:
        await world.forward()

    assert caught.value.digest == X
    assert caught.value.by == {ANN.peer, BOB.peer}
    assert world.num_calls == {"ann": 1, "bob": 1}


async def test_blame__two_peers_complain_of_one_again_and_again__it_is_not_asked_in_this_step() -> (
    None
):
    world, others = World(ann=Peer(), bob=Peer()), [make_session(name).peer for name in "cd"]
    world.calling.blame(UNIT, [ANN.peer], others)
    world.announce("ann", "bob", version=2000)
    assert {await world.forward() for _ in range(2)} == {ANN.peer, BOB.peer}

    world.calling.blame(UNIT, [ANN.peer], others)
    world.announce("ann", "bob", version=3000)

    assert {await world.forward() for _ in range(4)} == {BOB.peer}


async def test_blame__all_of_a_stage_are_complained_of__all_are_asked_again() -> None:
    world = World(ann=Peer(), bob=Peer())
    for accused in (ANN.peer, BOB.peer):
        for by in (b"c" * 32, b"d" * 32, b"c" * 32):
            world.calling.blame(UNIT, [accused], [PeerId(by)])
    world.announce("ann", "bob", version=2000)

    assert await world.forward() in {ANN.peer, BOB.peer}


async def test_blame__one_peer_complains_of_another_all_the_time__proves_nothing() -> None:
    world = World(ann=Peer(), bob=Peer())
    for _ in range(10):
        world.calling.blame(UNIT, [ANN.peer], [make_session("c").peer])

    world.announce("ann", "bob", version=2000)

    assert {await world.forward() for _ in range(2)} == {ANN.peer, BOB.peer}


async def test_calling__nobody_within_its_quota__caps_are_lifted_after_a_while() -> None:
    world = World(ann=Peer(), quota=0)

    assert await world.forward() == ANN.peer

    assert sum(world.pauses) >= LIFT_AFTER
    assert world.pauses == sorted(world.pauses)


async def test_calling__several_units_wait_at_once__caps_are_lifted_no_sooner() -> None:
    world, spans = World(ann=Peer(), quota=0), [0.0] * 4
    waiting = ContextVar[int]("waiting")

    async def pause(span: float) -> None:
        spans[waiting.get()] += span
        await asyncio.sleep(0)

    async def forward(number: int) -> None:
        waiting.set(number)
        await world.forward()

    world.pause = pause
    async with asyncio.TaskGroup() as tasks:
        for number in range(len(spans)):
            tasks.create_task(forward(number))

    assert min(spans) >= LIFT_AFTER


async def test_calling__the_only_peer_within_its_quota_always_fails__others_may_have_more() -> None:
    world = World(ann=Peer(*[errors.PeerUnreachable("gone")] * 500), bob=Peer())
    world.announce("ann", "bob", full=["bob"], version=2000)

    assert await world.forward() == BOB.peer

    assert sum(world.pauses) >= LIFT_AFTER


def backward(sticky: Passed | None) -> AskBackward:
    dy = Held(digest=DY, holders=HOLDERS)
    return AskBackward(STAGE, FORWARD.x, dy, Y, ZERO_DIGEST, sticky)


async def test_calling__backward__goes_to_the_keeper_under_its_attempt() -> None:
    world = World(ann=Peer(), bob=Peer())
    keeper = Passed(BOB.peer, 77, GOOD)

    passed = await world.calling.go(MIDDLE, backward(keeper))

    assert (passed.peer, passed.attempt) == (BOB.peer, 77)


async def test_calling__keeper_is_gone__another_one_computes_again() -> None:
    world = World(ann=Peer(), bob=Peer(errors.PeerUnreachable("gone")))

    passed = await world.calling.go(MIDDLE, backward(Passed(BOB.peer, 77, GOOD)))

    assert (passed.peer, passed.attempt) == (ANN.peer, 1000)
