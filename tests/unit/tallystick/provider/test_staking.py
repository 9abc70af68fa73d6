"""What does an account deposit before it offers, and when does it sign a Bond?"""

import contextlib
from pathlib import Path
from typing import cast

import pytest

from contracts.governance.escrow import Channel
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InsufficientStake, Unavailable
from contracts.terms.ids import JobId
from contracts.terms.signatures import Signed
from tallystick.provider.folder import OwnJob
from tallystick.provider.money import bond_for, prepare
from tallystick.sdk.client import MarketClient
from tests.support.history import make_spec
from tests.unit.tallystick.provider.own_chain import TIMES, OwnChain

JOB = JobId(b"j" * 32)


async def prepared(chain: OwnChain, wanted: int = 5, jobs: int = 0) -> None:
    known = [OwnJob(JobId(bytes([n] * 32)), make_spec(), ()) for n in range(jobs)]
    client = cast(MarketClient, None)
    await prepare(client, BaseUnits(wanted), known, chain.on_chain(), print)


async def test_prepare__deposit_is_mined_while_it_is_tried_again__is_made_once() -> None:
    chain = OwnChain(mines_at_once=False)
    with pytest.raises(Unavailable):
        await prepared(chain)

    chain.mines_at_once = chain.mines_after_a_read = True
    with contextlib.suppress(Unavailable):
        await prepared(chain)
    await prepared(chain)

    assert chain.free == 5


async def test_prepare__some_is_free_and_some_bonded__deposits_the_rest() -> None:
    chain = OwnChain(free=3, channel=Channel(stake=4))

    await prepared(chain, 15, jobs=2)
    await prepared(chain, 15, jobs=2)

    assert (chain.free, len(chain.sent)) == (7, 1)


async def bond(chain: OwnChain, folder: Path, stake: int = 5) -> Signed | None:  # type: ignore[type-arg]
    return await bond_for(chain.on_chain(), TIMES, folder, JOB, BaseUnits(stake))


async def test_bond_for__asked_again__is_the_same_while_it_counts_and_then_another(
    tmp_path: Path,
) -> None:
    chain = OwnChain(free=5)

    first, again = await bond(chain, tmp_path), await bond(chain, tmp_path)
    chain.now += TIMES.margin
    later = await bond(chain, tmp_path)

    assert first is not None and later is not None
    assert first == again and first.message.by == 1000 + 60 * 23 // 24
    assert later.message.by == first.message.by + TIMES.margin


async def test_bond_for__bonded_already_or_too_little_free__none_or_refused(
    tmp_path: Path,
) -> None:
    assert await bond(OwnChain(channel=Channel(stake=5)), tmp_path) is None
    assert await bond(OwnChain(), tmp_path, stake=0) is None
    with pytest.raises(InsufficientStake):
        await bond(OwnChain(free=2, channel=Channel(stake=2)), tmp_path)
    assert list(tmp_path.iterdir()) == []
