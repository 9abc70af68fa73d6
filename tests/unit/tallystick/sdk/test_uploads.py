"""Several uploads at once: never more than a few, and the first that fails ends the others."""

import asyncio
from functools import partial

import pytest

from contracts.terms.errors import TooLarge
from tallystick.sdk.parts import UPLOADS, few_at_once


async def test_uploads__many__a_few_are_on_their_way_at_once() -> None:
    under_way, seen = 0, list[int]()

    async def upload() -> None:
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await few_at_once([upload] * (3 * UPLOADS))

    assert len(seen) == 3 * UPLOADS
    assert max(seen) == UPLOADS


async def test_uploads__one_is_refused__the_others_end_and_it_is_said() -> None:
    begun: list[int] = []

    async def upload(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise TooLarge("the account has no room for it")
        await asyncio.Event().wait()

    with pytest.raises(TooLarge, match="no room"):
        await few_at_once(partial(upload, number) for number in range(3 * UPLOADS))

    assert len(begun) <= UPLOADS + 1
