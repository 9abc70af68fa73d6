"""A provider gets its money by the verbs, on a real chain and without any market."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.claims import PayTree, SealedPay
from contracts.governance.pay import PayLeaf
from contracts.keys.store import save_wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.moments import UnixSeconds
from tallystick.chains import NOTE, chain_name
from tallystick.provider.folder import (
    KEPT_OF_CHAIN,
    OwnJob,
    ProviderFolder,
    jobs_in,
    keystore_in,
    save_pay,
    save_signed,
)
from tallystick.provider.money import Money, bond_for, prepare
from tallystick.sdk.client import MarketClient
from tallystick.sdk.on_chain import OnChain, on_chain
from tests.integration.bad_input.servers import market_at_url
from tests.integration.bad_input.verbs import Said, call
from tests.integration.market.open_job import COORDINATOR, POSTER, STAKE, OpenJob, open_job
from tests.support.databases import new_world
from tests.support.history import make_session, make_wallet, seal_over

ANN, BOB = make_wallet("ann"), make_wallet("bob")
LIMIT = BaseUnits(5_000_000)
NOBODY = "http://127.0.0.1:1"


@dataclass
class World(OpenJob):
    """A chain with a job, and Ann's folder."""

    home: Path

    @asynccontextmanager
    async def own(self) -> AsyncIterator[OnChain]:
        """Ann's hands on the chain."""
        folder = ProviderFolder(self.home)
        try:
            async with on_chain(self.network, ANN, self.home, print, KEPT_OF_CHAIN) as own:
                yield own
        finally:
            folder.close()

    @property
    def lease(self) -> Path:
        """The folder of Ann's lease."""
        folder = self.home / "leases" / ("ab" * 32)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def jobs(self) -> list[OwnJob]:
        """Jobs of the folder that are not settled."""
        return jobs_in(self.home, unsettled=True)

    def seal(self, step: int, *, last: bool = False, **pay: tuple[int, int]) -> None:
        """A seal comes: Ann's peer wrote down what all have earned and vested."""
        accounts = {"ann": ANN.account, "bob": BOB.account}
        leaves = tuple(
            PayLeaf(account, BaseUnits(earned), BaseUnits(vested))
            for account, (earned, vested) in sorted(
                (accounts[name], each) for name, each in pay.items()
            )
        )
        seal = seal_over(self.spec.job(), step, PayTree(leaves), last=last)
        save_pay(
            self.lease, SealedPay(COORDINATOR.sign(seal, self.deployed.deployment.domain), leaves)
        )

    async def said(self, *words: str, code: int = 0) -> dict[str, Any]:
        """What a verb answers with."""
        line = ["provider", *words, "--home", str(self.home), "-o", "json"]
        done: Said = await asyncio.to_thread(call, line, {"TALLYSTICK_MARKET": NOBODY})
        assert done.exit_code == code, done
        answered: dict[str, Any] = json.loads(done.stdout or done.stderr)
        return answered


@asynccontextmanager
async def world_in(folder: Path) -> AsyncIterator[World]:
    """An open job with limits for Ann, who has deposited and is bonded, and Bob."""
    async with open_job(folder) as opened:
        chain, escrow = opened.deployed.chain, opened.deployed.contracts.escrow
        job, domain = opened.spec.job(), opened.deployed.deployment.domain
        relayer = opened.deployed.senders["relayer"]
        await opened.give(ANN.account, 2 * STAKE)
        home = folder / "home"
        save_wallet(keystore_in(home), ANN)
        (home / NOTE).write_text(chain_name(opened.network))
        world = World(opened.deployed, opened.network, opened.signed, home)
        save_signed(world.lease, opened.signed)
        async with world.own() as own, MarketClient(NOBODY) as client:
            times = await escrow.times(await chain.head())
            for _ in range(2):
                await prepare(client, STAKE, world.jobs, own, print)
            bond = await bond_for(own, times, world.lease, job, STAKE)
            assert bond is not None
            await relayer.send("bond", escrow.bond_many(job, [bond]))
        limits = tuple(Limit(account=each.account, limit=LIMIT) for each in (ANN, BOB))
        soon = UnixSeconds((await chain.head()).timestamp + times.margin // 2)
        grant = COORDINATOR.sign(Grant(job=job, limits=limits, by=soon), domain)
        await relayer.send("grant", escrow.grant(opened.spec.header(), grant))
        yield world


@pytest.mark.timeout(240)
async def test_verbs__market_is_gone__settle_for_oneself_and_all_quit_and_withdraw(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world:
        job, deposited = world.spec.job().hex(), 2 * STAKE - await world.tokens(ANN.account)
        world.seal(3, ann=(900_000, 700_000), bob=(800_000, 600_000))

        would = await world.said("settle", job[:12], "--dry-run")
        first, again = [await world.said("settle", job[:12]) for _ in range(2)]
        everybody = await world.said("settle-all")
        assert deposited == STAKE and (await world.channel(ANN.account)).stake == STAKE
        assert [len(each["jobs"][0]["calls"]) for each in (would, first, again)] == [1, 1, 0]
        assert [each["jobs"][0]["paid"] for each in (would, first)] == ["700000", "700000"]
        assert would["jobs"][0]["transactions"] == [] and first["free"] == "700000"
        assert len(everybody["jobs"][0]["transactions"]) == 1
        assert (await world.channel(BOB.account)).claimed == 600_000

        quitting = await world.said("quit", job, "--direct")
        twice = await world.said("quit", job, "--direct", code=6)
        channel = await world.channel(ANN.account)
        assert (quitting["keep"], quitting["given_back"]) == ("900000", "4100000")
        assert channel.end and channel.limit == 900_000 and "ended there already" in str(twice)

        too_much = await world.said("withdraw", "5", code=5)
        taken = await world.said("withdraw", "all", "--to", POSTER.account.hex())
        assert too_much["data"]["held"] == 700_000 or "free in the escrow" in str(too_much)
        assert (taken["amount"], taken["free"]) == ("700000", "0")
        assert await world.tokens(POSTER.account) == 700_000


@pytest.mark.timeout(240)
async def test_agent_money__market_is_gone_for_good__claims_quits_and_gets_its_stake_back(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world, world.own() as own, MarketClient(NOBODY) as client:
        now, said = [0.0], list[str]()
        times = await own.contracts.escrow.times(await own.contracts.chain.head())
        money = Money(client, own, times, BaseUnits(500_000), said.append, lambda: now[0])
        world.seal(3, ann=(900_000, 600_000), bob=(800_000, 600_000))

        async def look(*, live: bool = False) -> None:
            now[0] += 20
            await money.look(world.jobs, {world.spec.job()} if live else ())

        await look(live=True)
        paid_at_work = (await world.channel(ANN.account)).claimed
        world.seal(4, last=True, ann=(900_000, 900_000), bob=(800_000, 800_000))
        for _ in range(4):
            await look()
        left = await world.channel(ANN.account)
        await world.rpc("evm_increaseTime", times.tail + times.tail // 7 + 1)
        await world.rpc("evm_mine")
        for _ in range(2):
            await look()

        assert paid_at_work == 600_000 and left.claimed == 900_000
        assert left.end and left.limit == 900_000 and left.stake == STAKE
        head = await own.contracts.chain.head()
        free = (await own.contracts.escrow.balances([ANN.account], head))[ANN.account][0]
        assert free == STAKE + 900_000 and world.jobs == []
        assert (await world.channel(ANN.account)).stake == 0
        assert "has quit job" in said[-1]


async def test_withdraw_offer__one_stands__is_taken_back_once(tmp_path: Path) -> None:
    world, home = new_world(), tmp_path / "provider"
    await world.register()
    offer = await world.offer("ann", 10**11)
    save_wallet(keystore_in(home), ANN)
    (home / "agent.key").write_bytes(make_session("agent ann").secret)
    save_signed(home, world.sign_offer("ann", 10**11))
    async with market_at_url(world) as url:
        line = ["provider", "withdraw-offer", "--home", str(home), "--market", url, "-o", "json"]
        tries = [[*line, "--dry-run"], line, line]
        done = [await asyncio.to_thread(call, each, {}) for each in tries]

    assert [each.exit_code for each in done] == [0, 0, 0], done
    assert [json.loads(each.stdout)["offer"] for each in done] == [offer.hex(), offer.hex(), None]
