"""The market's database is of one chain: on another nothing is read, forgotten or sent."""

from types import SimpleNamespace
from typing import cast

import pytest

from contracts.chain.connection import ChainConnection
from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import Digest
from market.adapters.transactions import RowTransactions
from market.service import sync_chain
from market.service.rows import CursorRow
from tests.support.fakes.memory_chain import MemoryChain
from tests.support.history import DOMAIN, START
from tests.support.market_world import ANCHORER, World


def node_of(chain: MemoryChain) -> ChainConnection:
    """What a sender would be connected to."""

    async def genesis() -> Digest:
        return chain.blocks[0].hash

    return cast(ChainConnection, SimpleNamespace(genesis=genesis))


async def test_sync__another_chain__is_refused_and_what_is_stored_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_chain, "KEPT_CURSORS", 2)
    old, new = (MemoryChain(DOMAIN, ANCHORER, now=START + more) for more in (0, 1))
    store = RowTransactions(world.new_work)
    await store.need_chain(node_of(new))  # nothing is noted yet
    for _ in range(4):
        old.give_tokens(ANCHORER, 1)
        await sync_chain.sync_chain(world.now, world.new_work(), old, first_block=0)
    new.give_tokens(ANCHORER, 1)

    with pytest.raises(WrongConfiguration, match="another chain than the one that the market's"):
        await sync_chain.sync_chain(world.now, world.new_work(), new, first_block=0)
    with pytest.raises(WrongConfiguration, match="nothing of it is sent here"):
        await store.need_chain(node_of(new))

    await store.need_chain(node_of(old))
    cursors = await world.rows(CursorRow, order="block")
    assert cursors[0] == CursorRow(0, old.blocks[0].hash)
    assert [each.block for each in cursors] == [0, 3, 4]
