"""A poster takes its money back from the chain alone: no market answers, the folder is enough."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.keys.store import save_wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.orders import NETWORK_FILE, Order
from tests.integration.bad_input.servers import NOBODY
from tests.integration.bad_input.verbs import Said, call
from tests.integration.market.open_job import BUDGET, COORDINATOR, POSTER, OpenJob, open_job
from tests.support.history import make_wallet

LIMIT = BaseUnits(BUDGET - 8_000_000)


@dataclass
class Away(OpenJob):
    """A job in escrow, and its poster, whose market is gone."""

    home: Path

    async def said(self, *words: str) -> Said:
        """What a verb of the poster answers."""
        variables = {"TALLYSTICK_HOME": str(self.home), "TALLYSTICK_MARKET": NOBODY}
        return await asyncio.to_thread(call, [*words, "-o", "json"], variables)


@asynccontextmanager
async def away(folder: Path) -> AsyncIterator[Away]:
    """The job is open, and one account has a limit."""
    async with open_job(folder) as opened:
        deployed, spec, home = opened.deployed, opened.spec, folder / "home"
        await deployed.anvil.fund(deployed.chain, POSTER.account)
        soon = UnixSeconds((await deployed.chain.head()).timestamp + 30)
        limit = Limit(account=make_wallet("ann").account, limit=LIMIT)
        grant = Grant(job=spec.job(), limits=(limit,), by=soon)
        signed = COORDINATOR.sign(grant, deployed.deployment.domain)
        call_of = deployed.contracts.escrow.grant(spec.header(), signed)
        await deployed.senders["relayer"].send("grant", call_of)

        save_wallet(home / "poster.json", POSTER)
        (home / "orders").mkdir()
        order = Order(signed=opened.signed.encoded(), is_posted=True)
        (home / "orders" / "0abc.json").write_text(order.model_dump_json())
        (home / "orders" / NETWORK_FILE).write_text(opened.network.model_dump_json())
        yield Away(deployed, opened.network, opened.signed, home)


async def test_reclaim_and_close__market_is_gone__bring_back_what_is_not_committed(
    tmp_path: Path,
) -> None:
    async with away(tmp_path) as it:
        job = it.spec.job().hex()
        would = await it.said("job", "reclaim", job, "--dry-run")
        some = await it.said("job", "reclaim", job[:12], "2")
        after_some = await it.tokens(POSTER.account)
        too_much = await it.said("job", "reclaim", job, "7")
        closed = await it.said("job", "close", job, "--direct")
        again = await it.said("job", "close", job, "--direct")
        rest = await it.said("job", "reclaim", job, "--rpc", it.deployed.anvil.url)
        nothing = await it.said("job", "reclaim", job)
        budget, tokens = await it.budget(), await it.tokens(POSTER.account)

    assert json.loads(would.stdout)["amount"] == str(BUDGET - LIMIT)
    assert json.loads(would.stdout)["transaction"] is None
    assert (some.exit_code, after_some) == (0, 2_000_000)
    assert too_much.exit_code == 6
    assert json.loads(too_much.stderr)["data"] == {"would_fit": "6000000"}
    assert closed.exit_code == again.exit_code == 0
    assert closed.stdout == again.stdout  # it was sent once
    assert json.loads(rest.stdout)["amount"] == "6000000"
    assert json.loads(nothing.stdout)["amount"] == "0"
    assert tokens == BUDGET - LIMIT
    assert (budget.funded, budget.committed, budget.free) == (LIMIT, LIMIT, 0)
    assert budget.closed_at


async def test_reclaim__job_of_another_wallet_or_unknown__is_refused(tmp_path: Path) -> None:
    async with away(tmp_path) as it:
        save_wallet(it.home / "stranger.json", make_wallet("stranger"))
        job, wallet = it.spec.job().hex(), ("--wallet", str(it.home / "stranger.json"))
        stranger = await it.said("job", "reclaim", job, *wallet)
        unknown = await it.said("job", "reclaim", "ab" * 32)

    assert (stranger.exit_code, json.loads(stranger.stderr)["code"]) == (4, "forbidden")
    assert unknown.exit_code == 8  # it asks the market, which is gone
