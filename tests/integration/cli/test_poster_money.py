"""A poster takes its money back from the chain alone: no market answers, the folder is enough."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.governance.escrow import Budget
from contracts.keys.store import save_wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.ids import ZERO_ADDRESS, ZERO_DIGEST
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.market import ContractsView, EscrowTimesView, NetworkView, TokenView
from tallystick.sdk.orders import NETWORK_FILE, Order
from tests.integration.bad_input.servers import NOBODY
from tests.integration.bad_input.verbs import Said, call
from tests.support.anvil import FAST_TIMES, DeployedChain, deployed_chain
from tests.support.history import make_spec, make_wallet

POSTER, COORDINATOR = make_wallet("poster"), make_wallet("coordinator")
BUDGET, LIMIT = BaseUnits(10_000_000), BaseUnits(3_000_000)


@dataclass
class Away:
    """A job in escrow, and its poster, whose market is gone."""

    deployed: DeployedChain
    spec: JobSpec
    home: Path

    async def said(self, *words: str) -> Said:
        """What a verb of the poster answers."""
        variables = {"TALLYSTICK_HOME": str(self.home), "TALLYSTICK_MARKET": NOBODY}
        return await asyncio.to_thread(call, [*words, "-o", "json"], variables)

    async def budget(self) -> Budget:
        """What the escrow holds for the job."""
        job, head = self.spec.job(), await self.deployed.chain.head()
        return (await self.deployed.contracts.escrow.budgets([job], head))[job]

    async def tokens(self) -> int:
        """In the poster's wallet."""
        head = await self.deployed.chain.head()
        return await self.deployed.contracts.token.balance(POSTER.account, head)


async def network_of(deployed: DeployedChain) -> NetworkView:
    """As the market said it, while there was one."""
    where = deployed.deployment
    token = TokenView(name="t", version="1", symbol="T", decimals=6, domain_separator=ZERO_DIGEST)
    return NetworkView(
        version="0",
        chain_id=where.chain_id,
        genesis=await deployed.chain.genesis(),
        rpc_url=deployed.anvil.url,
        embedded=False,
        contracts=ContractsView(
            token=where.token, parameters=where.parameters, escrow=where.escrow, seals=where.seals
        ),
        deployed_block=where.block,
        token=token,
        times=EscrowTimesView(**FAST_TIMES),
        parameters={},
        anchorer=ZERO_ADDRESS,
        confirmations=1,
        clock=UnixMillis(0),
    )


@asynccontextmanager
async def away(folder: Path) -> AsyncIterator[Away]:
    """The job is open, and one account has a limit."""
    async with deployed_chain(folder) as deployed:
        token, escrow = deployed.contracts.token, deployed.contracts.escrow
        send, chain = deployed.senders, deployed.chain
        by = UnixSeconds((await chain.head()).timestamp + FAST_TIMES["margin"] // 2)
        spec = make_spec(POSTER, COORDINATOR, budget=BUDGET, burst=BUDGET, open_by=by)
        signed = POSTER.sign(spec, deployed.deployment.domain)
        await deployed.anvil.fund(chain, POSTER.account)
        await send["faucet"].send("tokens", token.faucet(POSTER.account, BUDGET))
        await chain.request("anvil_impersonateAccount", [f"0x{POSTER.account.hex()}"])
        approval = token.approve(escrow.address, BUDGET)
        await chain.request(
            "eth_sendTransaction",
            [{
                "from": f"0x{POSTER.account.hex()}", "to": f"0x{approval.to.hex()}",
                "data": f"0x{approval.data.hex()}",
            }],
        )  # fmt: skip
        await send["relayer"].send("open", escrow.open(spec.header(), signed.signature))
        limit = Limit(account=make_wallet("ann").account, limit=LIMIT)
        grant = Grant(job=spec.job(), limits=(limit,), by=by)
        granted = COORDINATOR.sign(grant, deployed.deployment.domain)
        await send["relayer"].send("grant", escrow.grant(spec.header(), granted))

        home = folder / "home"
        save_wallet(home / "poster.json", POSTER)
        (home / "orders").mkdir()
        order = Order(signed=signed.encoded(), is_posted=True)
        (home / "orders" / "0abc.json").write_text(order.model_dump_json())
        network = (await network_of(deployed)).model_dump_json()
        (home / "orders" / NETWORK_FILE).write_text(network)
        yield Away(deployed, spec, home)


async def test_reclaim_and_close__market_is_gone__bring_back_what_is_not_committed(
    tmp_path: Path,
) -> None:
    async with away(tmp_path) as it:
        job = it.spec.job().hex()
        would = await it.said("job", "reclaim", job, "--dry-run")
        some = await it.said("job", "reclaim", job[:12], "2")
        after_some = await it.tokens()
        too_much = await it.said("job", "reclaim", job, "6")
        closed = await it.said("job", "close", job, "--direct")
        again = await it.said("job", "close", job, "--direct")
        rest = await it.said("job", "reclaim", job, "--rpc", it.deployed.anvil.url)
        nothing = await it.said("job", "reclaim", job)
        budget, tokens = await it.budget(), await it.tokens()

    assert json.loads(would.stdout)["amount"] == str(BUDGET - LIMIT)
    assert json.loads(would.stdout)["transaction"] is None
    assert (some.exit_code, after_some) == (0, 2_000_000)
    assert too_much.exit_code == 6
    assert json.loads(too_much.stderr)["data"] == {"would_fit": "5000000"}
    assert closed.exit_code == again.exit_code == 0
    assert closed.stdout == again.stdout  # it was sent once
    assert json.loads(rest.stdout)["amount"] == "5000000"
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
