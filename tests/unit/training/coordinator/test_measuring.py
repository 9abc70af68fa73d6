"""How fast a newcomer is: timed by the coordinator's clock, one peer at a time."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest
from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.ids import JobId, PeerId, StageIndex
from training.coordinator.measuring import Measuring
from training.transport.calls import Done
from training.transport.port import Deadline, Reply, Session

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
    """What is asked of a session to a peer that takes so many ns for each of its calls."""

    def __init__(
        self,
        watch: Watch,
        *takes: int,
        then: errors.TallystickError | None = None,
        heard: Callable[[], None] = lambda: None,
        waits: asyncio.Event | None = None,
    ) -> None:
        self._watch, self._takes, self._then, self._heard = watch, list(takes), then, heard
        self._waits = waits

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
        self._heard()
        if not self._takes:
            assert self._then is not None
            raise self._then
        await (self._waits.wait() if self._waits else asyncio.sleep(0))
        self._watch.now += self._takes.pop(0)
        return Reply(Done().encoded(), ())


async def measured(measuring: Measuring, peer: TimedPeer, number: int = 0) -> int:
    """The rate of the peer of this number."""
    return await measuring.rate_of(PeerId(bytes([number]) * 32), cast(Session, peer), STAGE)


async def test_measuring__machine_is_busy_now_and_then__the_least_of_all_units_counts() -> None:
    watch = Watch()
    takes = [5000, 50, 45, 20, 60, 30, 40, 50, 70]  # it builds the stage first
    peer = TimedPeer(watch, *(each * MILLISECOND for each in takes))

    rate = await measured(Measuring(JOB, watch), peer)

    assert rate == 50 * 10**6  # 50 units a second


@pytest.mark.parametrize(
    ("takes", "rate"), [((200, 125), 8 * 10**6), ((2500,), 400_000)], ids=["twice", "once"]
)
async def test_measuring__units_take_long__are_timed_until_it_is_enough(
    takes: tuple[int, ...], rate: int
) -> None:
    watch = Watch()
    peer = TimedPeer(watch, 0, *(each * MILLISECOND for each in takes))  # one more would fail

    assert await measured(Measuring(JOB, watch), peer) == rate


async def test_measuring__two_at_once__take_turns_and_do_not_slow_each_other_down() -> None:
    watch = Watch()
    measuring = Measuring(JOB, watch)
    takes = [0, 150 * MILLISECOND, 100 * MILLISECOND, 50 * MILLISECOND]
    asked: list[int] = []
    peers = [TimedPeer(watch, *takes, heard=partial(asked.append, n)) for n in range(2)]

    rates = await asyncio.gather(*(measured(measuring, each, i) for i, each in enumerate(peers)))

    assert rates == [20 * 10**6, 20 * 10**6]
    turns = asked[2:]
    assert turns == turns[:2] * 3
    assert {*turns} == {0, 1}


async def test_measuring__another_one_builds__its_end_is_waited_for() -> None:
    watch = Watch()
    measuring = Measuring(JOB, watch)
    asked: list[str] = []
    is_built = asyncio.Event()
    builder = TimedPeer(watch, *[0] * 9, heard=partial(asked.append, "builder"), waits=is_built)
    other = TimedPeer(watch, *[0] * 9, heard=partial(asked.append, "other"))
    running = [
        asyncio.ensure_future(measured(measuring, peer, i))
        for i, peer in enumerate((builder, other))
    ]
    while len(asked) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    before = list(asked)
    is_built.set()
    await asyncio.gather(*running)

    assert before == ["builder", "other"]  # both were asked to build, and nobody is timed


async def test_measuring__no_answer__says_so_and_is_forgotten() -> None:
    watch = Watch()
    measuring = Measuring(JOB, watch)
    peer = TimedPeer(watch, 0, then=errors.DeadlineExceeded("late"))

    with pytest.raises(errors.Unavailable, match="not done in time"):
        await measured(measuring, peer)
    assert measuring.groups() == ()


@pytest.mark.parametrize(
    "error", [errors.Conflict("another job"), errors.WrongBytes("no such rows")]
)
async def test_measuring__peer_says_no__may_join_again(error: errors.TallystickError) -> None:
    watch = Watch()
    peer = TimedPeer(watch, 0, then=error)

    with pytest.raises(errors.Unavailable, match=error.message):
        await measured(Measuring(JOB, watch), peer)


async def test_measuring__same_peer_asks_twice_at_once__the_second_call_is_refused() -> None:
    watch = Watch()
    peer = TimedPeer(watch, *[MILLISECOND] * 9)
    measuring = Measuring(JOB, watch)
    first = asyncio.ensure_future(measured(measuring, peer))
    await asyncio.sleep(0)

    with pytest.raises(errors.Overloaded):
        await measured(measuring, peer)

    assert await first == 10**9
    assert measuring.groups() == ()
