"""Adding to a job's escrow by one's own transaction, on a real chain."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from jsonschema_rs import Draft202012Validator

from contracts.chain.transactions import SqliteTransactions, StoredTransaction
from contracts.keys.store import save_wallet
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Conflict
from contracts.terms.messages import JobSpec
from market.bodies.routes import GET_JOB
from market.domain.jobs import JobState
from tallystick.cli.schema import all_verbs
from tallystick.sdk.client import MarketClient
from tallystick.sdk.on_chain import ToppedUp, top_up
from tests.integration.bad_input.servers import market_at_url
from tests.integration.bad_input.verbs import Said, call
from tests.integration.market.client import sdk
from tests.integration.market.on_chain import ChainWorld, chain_world
from tests.integration.market.test_on_chain import in_state, until
from tests.support.history import make_wallet
from tests.support.market_world import market_spec

AMOUNT = BaseUnits(1234)


@dataclass
class Poster:
    """Whoever pays, at one market."""

    world: ChainWorld
    client: MarketClient
    folder: Path
    spec: JobSpec

    async def pays(self, amount: BaseUnits = AMOUNT, *, beyond_budget: bool = True) -> ToppedUp:
        """Top the job up."""
        return await top_up(
            self.client,
            make_wallet("poster"),
            self.spec.job(),
            amount,
            folder=self.folder / "poster",
            beyond_budget=beyond_budget,
        )

    async def has(self, tokens: int) -> None:
        """Gas and some tokens."""
        contracts = self.world.on.contracts
        await self.world.on.anvil.fund(self.world.on.chain, self.spec.poster)
        call = contracts.token.faucet(self.spec.poster, BaseUnits(tokens))
        await self.world._mint(f"tokens {tokens}", call)

    async def rpc(self, method: str, *params: object) -> None:
        """Tell the chain when to mine."""
        await self.world.on.chain.request(method, list(params))

    async def escrowed(self) -> int:
        """What the chain holds for the job."""
        head = await self.world.on.chain.head()
        return (await self.world.on.contracts.escrow.funds(self.spec.job(), head)).deposited


@contextlib.asynccontextmanager
async def poster(folder: Path, database: str) -> AsyncIterator[Poster]:
    """A job that is funded, and its poster with twice AMOUNT and gas."""
    async with chain_world(folder, database) as world:
        await world.register()
        spec = market_spec()
        await world.post(spec)
        await in_state(world, spec.job(), JobState.FUNDED)
        async with sdk(world) as client:
            found = Poster(world, client, folder, spec)
            await found.has(2 * AMOUNT)
            yield found


async def test_top_up__beyond_the_budget__is_refused_unless_wanted_and_noted_by_the_market(
    tmp_path: Path, database: str
) -> None:
    async with poster(tmp_path, database) as running:
        budget, job = running.spec.budget, running.spec.job()
        with pytest.raises(Conflict, match="more work is another job") as refused:
            await running.pays(beyond_budget=False)

        done = await running.pays()

        async def noted() -> bool:
            view = await running.client.call(GET_JOB, job=job)
            return view.escrowed == budget + AMOUNT and view.reconciled

        await until(running.world, noted)
        assert refused.value.data["would_fit"] == "0"
        assert (done.deposited, done.budget) == (budget + AMOUNT, budget)
        assert not list((tmp_path / "poster").glob("topup-*"))


async def interrupted(running: Poster, stored: int) -> None:
    """A call that is ended while the chain holds its newest of so many transactions back."""
    known = len(await sent(running))
    call = asyncio.ensure_future(running.pays())
    while len(await sent(running)) < known + stored:
        await running.rpc("evm_mine")  # whatever came before
        await asyncio.sleep(0.05)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call


async def sent(running: Poster) -> list[StoredTransaction]:
    path = next((running.folder / "poster").glob("transactions-*.db"), None)
    if path is None:
        return []
    store = SqliteTransactions(path)
    try:
        return await store.since(running.spec.poster, 0)
    finally:
        store.close()


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(1, id="at the approval", marks=pytest.mark.nightly),
        pytest.param(2, id="at the payment"),
    ],
)
async def test_top_up__interrupted__second_call_pays_once(
    tmp_path: Path, database: str, stored: int
) -> None:
    async with poster(tmp_path, database) as running:
        await running.rpc("evm_setAutomine", False)
        await interrupted(running, stored)
        with pytest.raises(Conflict, match="was interrupted"):
            await running.pays(BaseUnits(AMOUNT - 1))
        await running.rpc("evm_setAutomine", True)
        await running.rpc("evm_mine")

        done = await running.pays()

        assert done.deposited == await running.escrowed() == running.spec.budget + AMOUNT
        assert len(await sent(running)) == 2
        again = await running.pays()  # the next one is another
        assert again.transaction != done.transaction
        assert again.deposited == running.spec.budget + 2 * AMOUNT


@pytest.mark.nightly
async def test_topup_command__dry_run_and_for_real__says_what_is_in_escrow(
    tmp_path: Path, database: str
) -> None:
    async with poster(tmp_path, database) as running, market_at_url(running.world) as url:
        save_wallet(tmp_path / "home" / "poster.json", make_wallet("poster"))
        environment = {"TALLYSTICK_HOME": str(tmp_path / "home"), "TALLYSTICK_MARKET": url}
        job, tokens = running.spec.job().hex(), format_tokens(AMOUNT)

        async def said(*more: str) -> Said:
            line = ["job", "topup", job, tokens, "-o", "json", *more]
            return await asyncio.to_thread(call, line, environment)

        refused = [await said(*more) for more in ((), ("--dry-run",))]
        would = await said("--beyond-budget", "--dry-run")
        before = await running.escrowed()
        done = await said("--beyond-budget")

        assert {(each.exit_code, each.stdout) for each in refused} == {(6, "")}
        assert json.loads(refused[1].stderr)["data"] == {"would_fit": "0"}
        assert before == running.spec.budget
        schema = next(each for each in all_verbs() if (each.noun, each.verb) == ("job", "topup"))
        for answer, is_sent in ((would, False), (done, True)):
            assert answer.exit_code == 0, answer
            found = json.loads(answer.stdout)
            Draft202012Validator(schema.document).validate(found)
            assert found["escrowed"] == str(running.spec.budget + AMOUNT)
            assert (found["transaction"] is not None) == is_sent
        assert await running.escrowed() == running.spec.budget + AMOUNT
