"""All contracts of one deployment, ready to read and to encode calls for."""

from dataclasses import dataclass

from contracts.chain.connection import ChainConnection, Log
from contracts.chain.deployment import Deployment
from contracts.chain.wrappers.escrow import Escrow
from contracts.chain.wrappers.parameters import ParametersContract
from contracts.chain.wrappers.seals import Seals
from contracts.chain.wrappers.settlement import SettlementContract
from contracts.chain.wrappers.stakes import Stakes
from contracts.chain.wrappers.token import Token


@dataclass(frozen=True)
class Contracts:
    """Wrappers that share one connection."""

    chain: ChainConnection
    deployment: Deployment
    token: Token
    parameters: ParametersContract
    escrow: Escrow
    stakes: Stakes
    seals: Seals
    settlement: SettlementContract

    async def events(self, from_block: int, to_block: int) -> list[Log]:
        """Events of escrow, stakes, seals and settlement in a range of blocks, in chain order."""
        found: list[Log] = []
        for contract in (self.escrow, self.stakes, self.seals, self.settlement):
            found += await contract.events(from_block, to_block)
        return sorted(found, key=lambda log: (log.block, log.index))


def bind(chain: ChainConnection, deployment: Deployment) -> Contracts:
    """Wrappers for `deployment` over `chain`."""
    return Contracts(
        chain,
        deployment,
        Token(chain, deployment.token),
        ParametersContract(chain, deployment.parameters),
        Escrow(chain, deployment.escrow),
        Stakes(chain, deployment.stakes),
        Seals(chain, deployment.seals),
        SettlementContract(chain, deployment.settlement),
    )
