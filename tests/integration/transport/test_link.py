"""Does the relay delay, slow and break a stream as it says, and the same way again?"""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.link import SEGMENT, Cut, Link, Shape, Stall, Way, open_link
from tests.support.patience import patience

KIB, MIB = 2**10, 2**20
TRIES = 5  # of a measurement: a busy machine makes some late, and none early


def arrivals(way: Way, *sizes: int, now: float = 0.0) -> list[tuple[float, int]]:
    """When pieces of these sizes arrive that are all sent at `now`; a cut has size -1."""
    found = [p for size in sizes for p in way.send(now, bytes(size))]
    return [(round(p.at, 9), -1 if p.cut else len(p.data)) for p in found]


# ------------------------------------------------------------------------------ decisions, timeless


def test_way__delay_and_rate__arrive_in_order_at_the_rate() -> None:
    way = Way(Shape(delay=0.05, rate=1000, burst=0))

    assert arrivals(way, 100, 100) == [(0.15, 100), (0.25, 100)]
    assert arrivals(way, 50, now=10.0) == [(10.1, 50)]


def test_way__burst__passes_at_once_and_is_filled_again_in_time() -> None:
    way = Way(Shape(rate=1000, burst=200))

    assert arrivals(way, 200, 100) == [(0.0, 200), (0.1, 100)]
    assert arrivals(way, 200, now=0.2) == [(0.3, 200)]
    assert arrivals(way, 200, now=9.0) == [(9.0, 200)]


def test_way__stall_and_cut__happen_at_their_byte() -> None:
    way = Way(Shape(), script=[Cut(150), Stall(100, seconds=2.0)])

    assert arrivals(way, 60, 60, 60) == [(0.0, 60), (0.0, 40), (2.0, 20), (2.0, 30), (2.0, -1)]
    assert way.passed == 150
    assert arrivals(way, 10, now=3.0) == [(3.0, 10)]  # of the next connection


def test_way__losses__depend_on_the_seed_and_not_on_the_cut_into_pieces() -> None:
    def losses(seed: int, size: int) -> tuple[int, float]:
        way = Way(Shape(loss=0.01, timeout=1.0), seed=seed)
        late = [at for _ in range(MIB // size) for at, _ in arrivals(way, size)]
        return way.losses, late[-1]

    assert losses(1, 64 * KIB) == losses(1, 1 * KIB) == losses(1, MIB)
    assert losses(1, MIB) != losses(2, MIB)
    numbers = [losses(seed, MIB)[0] for seed in range(200)]
    assert statistics.mean(numbers) == pytest.approx(MIB / SEGMENT * 0.01, rel=0.1)
    assert losses(1, MIB)[1] == losses(1, MIB)[0] * 1.0


# ---------------------------------------------------------------------------------- on real sockets


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every byte with itself."""
    try:
        while data := await reader.read(64 * KIB):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def echoing(
    there: Way | None = None, back: Way | None = None
) -> AsyncIterator[tuple[Link, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A link to an echo server, and a connection through it."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, open_link(there, back, target=f"{host}:{port}") as link:
        reader, writer = await dialled(link)
        yield link, reader, writer
        writer.close()


async def dialled(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = link.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> float:
    """Seconds until all of it came back."""
    clock = asyncio.get_running_loop().time
    start = clock()
    sending = asyncio.create_task(send(writer, data))
    assert await reader.readexactly(len(data)) == data
    await sending
    return clock() - start


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_link__delays_both_ways__round_trip_takes_their_sum() -> None:
    async with echoing(Way(Shape(delay=0.03)), Way(Shape(delay=0.02))) as (_, reader, writer):
        times = [await answer(reader, writer, b"ping") for _ in range(TRIES)]

    assert min(times) >= 0.049  # the loop's clock may wake a millisecond early
    assert min(times) <= 0.065


async def test_link__rate__is_kept_and_reached() -> None:
    rate, size = 8 * MIB, 1 * MIB
    async with echoing(Way(Shape(rate=rate))) as (_, reader, writer):
        times = [await answer(reader, writer, bytes(size)) for _ in range(TRIES)]

    assert min(times) >= 0.95 * size / rate
    assert min(times) <= 1.15 * size / rate


async def test_link__delay_without_rate__does_not_limit_throughput() -> None:
    size = 4 * MIB
    async with echoing(Way(Shape(delay=0.02))) as (_, reader, writer):
        times = [await answer(reader, writer, bytes(size)) for _ in range(TRIES)]

    assert min(times) >= 0.019
    assert min(times) <= 0.02 + size / (40 * MIB)  # a window of one buffer gives 12 MiB/s


async def test_link__losses__hold_the_stream_back_by_their_timeouts() -> None:
    way = Way(Shape(loss=0.01, timeout=0.03), seed=3)
    async with echoing(way) as (_, reader, writer):
        took = await answer(reader, writer, bytes(512 * KIB))

    assert way.losses >= 2
    assert took >= way.losses * 0.03 - 0.002


async def test_link__cut_by_script__lets_exactly_its_bytes_through_and_accepts_again() -> None:
    async with echoing(Way(Shape(), script=[Cut(100_000)])) as (link, _, writer):
        reader, writer = await dialled(link)
        writer.write(bytes(150_000))
        got = await until_broken(reader)
        assert got <= 100_000
        assert link.there.passed == 100_000
        again, writer_again = await dialled(link)
        await answer(again, writer_again, b"again")
        writer_again.close()
        writer.close()


async def until_broken(reader: asyncio.StreamReader) -> int:
    """Bytes that came before the connection broke."""
    got = 0
    try:
        while data := await reader.read(64 * KIB):
            got += len(data)
    except ConnectionError:
        pass
    return got


async def test_link__cut_on_the_way_back__receiver_got_exactly_its_bytes() -> None:
    back = Way(Shape(delay=0.01), script=[Cut(70_001)])
    async with echoing(None, back) as (_, reader, writer):
        writer.write(bytes(150_000))

        assert await until_broken(reader) == 70_001


async def test_link__stopped__delivers_nothing_until_it_goes_on() -> None:
    async with echoing() as (link, reader, writer):
        await answer(reader, writer, b"before")
        link.stop()
        waiting = asyncio.create_task(answer(reader, writer, b"held"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), patience(0.05))

        link.go_on()

        assert await asyncio.wait_for(waiting, 5.0) >= 0.05


async def test_link__cut_by_hand__breaks_all_connections() -> None:
    async with echoing() as (link, reader, writer):
        other_reader, other_writer = await dialled(link)
        await answer(other_reader, other_writer, b"up")
        await answer(reader, writer, b"up")

        link.cut()

        assert [await until_broken(reader), await until_broken(other_reader)] == [0, 0]
        other_writer.close()


async def test_link__nobody_at_the_target__closes_the_connection() -> None:
    async with open_link() as link:
        reader, writer = await dialled(link)

        assert await until_broken(reader) == 0
        writer.close()
