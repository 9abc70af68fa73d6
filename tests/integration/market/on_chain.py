"""A test's market over Postgres and a real anvil, driven in this process."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from contracts.chain.connection import Call
from contracts.chain.contracts import bind
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.keys.store import load_wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.typed_data import PERMIT as PERMIT_STRUCT
from market.adapters.chain import Confirming, RpcChain
from market.adapters.postgres import PostgresWork, make_engine
from market.adapters.transactions import RowTransactions
from market.bodies.jobs import Permit
from market.bootstrap import WRITING_ROLES
from market.service.ports import Chain, UnitOfWork
from tests.support.anvil import DeployedChain, deployed_chain
from tests.support.fakes.market_memory import NoLocks
from tests.support.history import make_wallet
from tests.support.market_world import SIGNED_SECONDS, STAKE, World, market_spec


def chain_spec(**changed: Any) -> JobSpec:
    """`market_spec` that can be opened now, by the wall's clock."""
    return market_spec(open_by=UnixSeconds(int(time.time()) + SIGNED_SECONDS), **changed)


NO_PERMIT_BEFORE = UnixSeconds(4_000_000_000)


@dataclass
class ChainWorld(World):
    """`World` whose chain is real; time is the wall's."""

    deployed: DeployedChain | None = None
    rpc: RpcChain | None = None

    @property
    def ports(self) -> Chain:
        """The contracts over JSON-RPC."""
        assert self.rpc is not None
        return self.rpc

    @property
    def on(self) -> DeployedChain:
        """The chain and its contracts."""
        assert self.deployed is not None
        return self.deployed

    @property
    def now(self) -> UnixMillis:
        """The wall's clock."""
        return UnixMillis(time.time_ns() // 1_000_000)

    def sender(self, name: str) -> Sender:
        """Sends transactions of a person."""
        store = SqliteTransactions(":memory:")
        return Sender(self.on.chain, make_wallet(name), store, self.on.deployment.chain_id)

    async def stake(self, name: str) -> None:
        """Gas and tokens for a provider, who puts them into the escrow."""
        account, contracts = make_wallet(name).account, self.on.contracts
        await self.on.anvil.fund(self.on.chain, account)
        call = contracts.token.faucet(account, BaseUnits(STAKE))
        await self._mint(f"stake {name}", call)
        sender = self.sender(name)
        approval = contracts.token.approve(self.on.deployment.escrow, BaseUnits(STAKE))
        await sender.send("approve", approval)
        await sender.send("deposit", contracts.escrow.deposit(account, BaseUnits(STAKE)))

    async def _mint(self, name: str, call: Call) -> None:
        assert self.rpc is not None
        await self.rpc._sender("faucet").send(name, call)

    async def give_tokens(self, spec: JobSpec, permit_by: str) -> Permit:
        """The poster gets its budget and signs a permit for it."""
        contracts, deployment = self.on.contracts, self.on.deployment
        call = contracts.token.faucet(spec.poster, spec.budget)
        await self._mint(f"budget {spec.job().hex()}", call)
        head = await self.on.chain.head()
        nonce = await contracts.token.permit_nonce(spec.poster, head)
        values = (spec.poster, deployment.escrow, spec.budget, nonce, int(NO_PERMIT_BEFORE))
        separator = await contracts.token.domain_separator(head)
        signature = make_wallet(permit_by).sign_permit(PERMIT_STRUCT, values, separator)
        return Permit(deadline=NO_PERMIT_BEFORE, signature=signature)


@asynccontextmanager
async def chain_world(folder: Path, database: str) -> AsyncIterator[ChainWorld]:
    """A market over a new chain and the given database."""
    engine, reading = make_engine(database), make_engine(database, reads=True)

    def new_work() -> UnitOfWork:
        return cast(UnitOfWork, PostgresWork(engine))

    def new_reading() -> UnitOfWork:
        return cast(UnitOfWork, PostgresWork(reading))

    try:
        async with deployed_chain(folder) as deployed:
            store = RowTransactions(new_work)
            wallets = {
                role: load_wallet(folder / "keys" / f"{role}.json") for role in WRITING_ROLES
            }
            chain_id = deployed.deployment.chain_id
            rpc = RpcChain(
                bind(deployed.chain, deployed.deployment),
                anchorer=wallets["anchorer"].account,
                rpc_url=deployed.anvil.url,
                confirming=Confirming(1, 0.0),
                locks=NoLocks(),
                senders={
                    role: Sender(deployed.chain, wallet, store, chain_id)
                    for role, wallet in wallets.items()
                },
                mine=deployed.chain,
            )
            yield ChainWorld(
                new_work,
                new_reading,
                domain=deployed.deployment.domain,
                anchorer=wallets["anchorer"].account,
                deployed=deployed,
                rpc=rpc,
            )
    finally:
        await engine.dispose()
        await reading.dispose()
