"""How fast a newcomer is: timed by the coordinator's clock, one peer at a time."""

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import Buffer

from contracts.terms.errors import DeadlineExceeded, TallystickError, Unavailable
from contracts.terms.ids import JobId, PeerId, SessionKey, StageIndex
from training.coordinator.measuring import Measuring
from training.transport.calls import Done
from training.transport.port import Deadline, Reply

JOB = JobId(bytes(32))
STAGE = StageIndex(1)
MILLISECOND = 10**6  # ns


class Watch:
    """A stopwatch that peers move."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """Nanoseconds since it was started."""
        return self.now


class TimedPeer:
    """A session to a peer that takes so many ns for each of its calls."""

    def __init__(self, watch: Watch, *takes: int, then: TallystickError | None = None) -> None:
        self._watch, self._takes, self._then = watch, list(takes), then

    async def call(
        self, method: str, header: bytes, tensors: Sequence[Buffer] = (), *, deadline: Deadline
    ) -> Reply:
        """See `port.Session.call`."""
        if not self._takes:
            assert self._then is not None
            raise self._then
        await asyncio.sleep(0)
        self._watch.now += self._takes.pop(0)
        return Reply(Done().encoded(), ())

    @property
    def node(self) -> SessionKey:
        """See `port.Session.node`."""
        return SessionKey(bytes(32))

    @property
    def closed(self) -> bool:
        """See `port.Session.closed`."""
        return False

    async def close(self) -> None:
        """See `port.Session.close`."""

    async def wait_closed(self) -> TallystickError:
        """See `port.Session.wait_closed`."""
        raise AssertionError


async def test_measuring__building_takes_long__only_the_second_call_counts() -> None:
    watch = Watch()
    peer = TimedPeer(watch, 5000 * MILLISECOND, 20 * MILLISECOND)

    rate = await Measuring(JOB, watch).rate_of(PeerId(bytes(32)), peer, STAGE)

    assert rate == 50 * 10**6  # 50 units a second


async def test_measuring__answer_at_once__is_bounded_by_the_clock() -> None:
    watch = Watch()

    rate = await Measuring(JOB, watch).rate_of(PeerId(bytes(32)), TimedPeer(watch, 0, 0), STAGE)

    assert rate == 10**15


async def test_measuring__two_at_once__do_not_slow_each_other_down() -> None:
    watch = Watch()
    measuring = Measuring(JOB, watch)
    peers = [TimedPeer(watch, 0, 10 * MILLISECOND) for _ in range(2)]

    rates = await asyncio.gather(
        *(measuring.rate_of(PeerId(bytes([i]) * 32), peer, STAGE) for i, peer in enumerate(peers))
    )

    assert rates == [10**8, 10**8]


async def test_measuring__no_answer__says_so_and_is_forgotten() -> None:
    watch = Watch()
    measuring = Measuring(JOB, watch)
    peer = TimedPeer(watch, 0, then=DeadlineExceeded("late"))

    with pytest.raises(Unavailable, match="not done in time"):
        await measuring.rate_of(PeerId(bytes(32)), peer, STAGE)
    assert measuring.stages() == ()


async def test_measuring__under_way__its_stage_is_known() -> None:
    watch = Watch()
    measuring = Measuring(JOB, watch)
    running = asyncio.ensure_future(
        measuring.rate_of(PeerId(bytes(32)), TimedPeer(watch, 1, 1), STAGE)
    )
    await asyncio.sleep(0)

    assert measuring.stages() == (STAGE,)
    await running
    assert measuring.stages() == ()
