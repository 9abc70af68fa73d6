"""A job in the escrow of a real chain, and what a market would say of that chain; none is there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.governance.escrow import Budget, Channel
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import PERMIT
from market.bodies.market import NetworkView
from tests.support.anvil import FAST_TIMES, DeployedChain, deployed_chain, network_of
from tests.support.history import make_spec, make_wallet

POSTER, COORDINATOR = make_wallet("poster"), make_wallet("coordinator")
BUDGET, STAKE = BaseUnits(20_000_000), BaseUnits(2_000_000)


@dataclass
class OpenJob:
    """The job, and its chain."""

    deployed: DeployedChain
    network: NetworkView
    signed: Signed[JobSpec]

    @property
    def spec(self) -> JobSpec:
        """What its poster signed."""
        return self.signed.message

    async def give(self, account: Address, tokens: int) -> None:
        """Gas and tokens for somebody."""
        await self.deployed.anvil.fund(self.deployed.chain, account)
        call = self.deployed.contracts.token.faucet(account, BaseUnits(tokens))
        await self.deployed.senders["faucet"].send(f"{account.hex()} {tokens}", call)

    async def budget(self) -> Budget:
        """Of the job, now."""
        job, head = self.spec.job(), await self.deployed.chain.head()
        return (await self.deployed.contracts.escrow.budgets([job], head))[job]

    async def channel(self, account: Address) -> Channel:
        """What an account has in the job, now."""
        place, head = (self.spec.job(), account), await self.deployed.chain.head()
        return (await self.deployed.contracts.escrow.channels([place], head))[place]

    async def tokens(self, account: Address) -> int:
        """What an account holds outside of the escrow."""
        head = await self.deployed.chain.head()
        return await self.deployed.contracts.token.balance(account, head)

    async def rpc(self, method: str, *params: object) -> None:
        """Tell the chain when to mine, or what time it is."""
        await self.deployed.chain.request(method, list(params))


@asynccontextmanager
async def open_job(folder: Path, **changed: Any) -> AsyncIterator[OpenJob]:
    """A new chain, on which a poster without gas has opened a job; `changed`: of its spec."""
    async with deployed_chain(folder) as deployed:
        chain, contracts, senders = deployed.chain, deployed.contracts, deployed.senders
        escrow, head = contracts.escrow, await chain.head()
        soon = UnixSeconds(head.timestamp + FAST_TIMES["margin"] // 2)
        usual: dict[str, Any] = {"budget": BUDGET, "min_stake": STAKE, "open_by": soon}
        spec = make_spec(POSTER, COORDINATOR, **(usual | changed))
        signed = POSTER.sign(spec, deployed.deployment.domain)
        await senders["faucet"].send("budget", contracts.token.faucet(spec.poster, spec.budget))
        separator = await contracts.token.domain_separator(head)
        values = (spec.poster, escrow.address, spec.budget, 0, soon)
        permit = POSTER.sign_permit(PERMIT, values, separator)
        opening = (
            escrow.permit(spec.poster, spec.budget, soon, permit),
            escrow.open(spec.header(), signed.signature),
        )
        await senders["relayer"].send("open", escrow.together(opening))
        yield OpenJob(deployed, await network_of(deployed), signed)
