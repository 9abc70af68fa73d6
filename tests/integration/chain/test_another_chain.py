"""A home that was used on one chain is used on another of the same id and the same addresses."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import Address, Digest
from market.bodies.market import NetworkView
from tallystick.sdk.on_chain import OnChain, on_chain
from tests.support.anvil import deployed_chain, network_of
from tests.support.history import make_wallet

ANN = make_wallet("ann")
SOMEBODY = Address(bytes(19) + b"\x77")


@contextlib.asynccontextmanager
async def used(home: Path, network: NetworkView, said: list[str]) -> AsyncIterator[OnChain]:
    """What is in the home, for as long as it is used on this chain."""
    async with on_chain(network, ANN, home, said.append, ("offer.msgpack",)) as own:
        yield own


async def test_on_chain__old_home_on_a_new_chain_and_back__each_keeps_its_own(
    tmp_path: Path,
) -> None:
    home, said = tmp_path / "home", list[str]()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with deployed_chain(tmp_path / "a") as old:
        shutil.copytree(tmp_path / "a" / "keys", tmp_path / "b" / "keys")
        while time.time() < (await old.chain.block(0)).timestamp + 1:
            await asyncio.sleep(0.05)  # two chains of one second have the same first block
        async with deployed_chain(tmp_path / "b") as new:
            for chain in (old, new):
                await chain.anvil.fund(chain.chain, ANN.account)
            async with used(home, await network_of(old), said) as own:
                for number in (1, 2):
                    await own.sender.send(f"gift:{number}", None, value=1, to=SOMEBODY)
            (home / "offer.msgpack").write_text("old")

            async with used(home, await network_of(new), said) as own:
                assert old.deployment == new.deployment
                assert await own.sender.resend() == 0
                assert await own.store.find(ANN.account, "gift:1") is None
                assert not (home / "offer.msgpack").exists()
                await own.sender.send("gift:1", None, value=7, to=SOMEBODY)
            assert await new.chain.balance(SOMEBODY) == 7
            async with used(home, await network_of(old), said) as own:
                assert await own.store.find(ANN.account, "gift:2") is not None
                assert (home / "offer.msgpack").read_text() == "old"
            assert len(said) == 2


async def test_on_chain__node_of_another_chain_than_the_market_says__is_refused(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed:
        network = await network_of(deployed)
        network.__dict__["genesis"] = Digest(b"g" * 32)

        with pytest.raises(WrongConfiguration, match="is a node of another chain 31337"):
            async with used(tmp_path / "home", network, []):
                pass
    assert not (tmp_path / "home").exists()
