"""Adding to a job's budget by one's own transaction, on a real chain."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.chain.transactions import SqliteTransactions, StoredTransaction
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Conflict, NotFound, Unaffordable
from contracts.terms.escrow_messages import Close
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.bodies.market import NetworkView
from tallystick.sdk.moved import ToppedUp
from tallystick.sdk.on_chain import rehearse_top_up, top_up
from tests.integration.market.open_job import BUDGET, POSTER, OpenJob, open_job
from tests.support.answering import AnsweringMarket

AMOUNT = BaseUnits(1234)


class Named(AnsweringMarket):
    """A market that names its chain, and knows every job."""

    def __init__(self, network: NetworkView) -> None:
        super().__init__()
        self.network = network

    async def get_network(self) -> NetworkView:
        """The chain."""
        return self.network

    async def get_job(self, job: JobId) -> Any:
        """Any."""
        return SimpleNamespace(job=job)


@dataclass
class Payer(OpenJob):
    """Whoever pays, at one market."""

    client: Named
    folder: Path

    async def pays(self, amount: BaseUnits = AMOUNT, job: JobId | None = None) -> ToppedUp:
        """Top the job up."""
        job = self.spec.job() if job is None else job
        return await top_up(self.client, POSTER, job, amount, folder=self.folder)

    async def sent(self) -> list[StoredTransaction]:
        """All transactions that were stored."""
        path = next(self.folder.glob("transactions-*.db"), None)
        if path is None:
            return []
        store = SqliteTransactions(path)
        try:
            return await store.since(POSTER.account, 0)
        finally:
            store.close()


@contextlib.asynccontextmanager
async def payer(folder: Path) -> AsyncIterator[Payer]:
    """A job that is open, and its poster with twice AMOUNT and gas."""
    async with open_job(folder) as opened, Named(opened.network) as client:
        await opened.give(POSTER.account, 2 * AMOUNT)
        yield Payer(opened.deployed, opened.network, opened.signed, client, folder / "poster")


async def test_top_up__more_than_there_is_or_a_job_that_takes_none__is_refused(
    tmp_path: Path,
) -> None:
    async with payer(tmp_path) as running:
        would = await rehearse_top_up(running.client, running.spec.job(), AMOUNT)
        with pytest.raises(Unaffordable):
            await running.pays(BaseUnits(3 * AMOUNT))
        with pytest.raises(NotFound):
            await running.pays(job=JobId(b"j" * 32))

        done = await running.pays()

        soon = UnixSeconds((await running.deployed.chain.head()).timestamp + 30)
        close = POSTER.sign(
            Close(job=running.spec.job(), by=soon), running.deployed.deployment.domain
        )
        call = running.deployed.contracts.escrow.close(running.spec.header(), close)
        await running.deployed.senders["relayer"].send("close", call)
        with pytest.raises(Conflict, match="is closed"):
            await running.pays()

        assert would.transaction is None and done.transaction is not None
        assert would.funded == done.funded == done.free == BUDGET + AMOUNT
        assert not list(running.folder.glob("topup-*"))


async def interrupted(running: Payer) -> None:
    """A call that is ended while the chain holds its transaction back."""
    call = asyncio.ensure_future(running.pays())
    while not await running.sent():
        await asyncio.sleep(0.05)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call


async def test_top_up__interrupted__second_call_pays_once(tmp_path: Path) -> None:
    async with payer(tmp_path) as running:
        await running.rpc("evm_setAutomine", False)
        await interrupted(running)
        with pytest.raises(Conflict, match="was interrupted"):
            await running.pays(BaseUnits(AMOUNT - 1))
        await running.rpc("evm_setAutomine", True)
        await running.rpc("evm_mine")

        done = await running.pays()

        assert done.funded == (await running.budget()).funded == BUDGET + AMOUNT
        assert len(await running.sent()) == 1
        again = await running.pays()  # the next one is another
        assert again.transaction != done.transaction
        assert again.funded == BUDGET + 2 * AMOUNT
