"""Server-sent events: the same events, wherever the network cut their bytes."""

from collections.abc import AsyncIterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tallystick.sdk.events import server_sent
from tests.unit.tallystick.sdk.test_events import EVENTS, STREAM


async def in_pieces(data: bytes, cuts: list[int]) -> AsyncIterator[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        yield data[start:end]


@given(st.lists(st.integers(min_value=0, max_value=10**6), max_size=8))
async def test_server_sent__cut_anywhere__are_the_events_that_came_whole(cuts: list[int]) -> None:
    found = [event async for event in server_sent(in_pieces(STREAM, cuts))]

    assert found == EVENTS
