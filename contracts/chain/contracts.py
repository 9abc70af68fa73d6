"""All contracts of one deployment, ready to read and to encode calls for."""

from dataclasses import dataclass

from contracts.chain.blocks import Log
from contracts.chain.connection import ChainConnection
from contracts.chain.deployment import Deployment
from contracts.chain.wrappers.escrow import JobEscrow
from contracts.chain.wrappers.parameters import ParametersContract
from contracts.chain.wrappers.seals import Seals
from contracts.chain.wrappers.token import Token


@dataclass(frozen=True)
class Contracts:
    """Wrappers that share one connection."""

    chain: ChainConnection
    deployment: Deployment
    token: Token
    parameters: ParametersContract
    escrow: JobEscrow
    seals: Seals

    async def events(self, from_block: int, to_block: int) -> list[Log]:
        """Events of the escrow and of anchors in a range of blocks, in chain order.

        Raises:
            ChainForgot: the chain went back while it was read.
        """
        found = await self.escrow.events(from_block, to_block)
        found += await self.seals.events(from_block, to_block)
        return sorted(found, key=lambda log: (log.block, log.log_index))


def bind(chain: ChainConnection, deployment: Deployment) -> Contracts:
    """Wrappers for `deployment` over `chain`."""
    return Contracts(
        chain,
        deployment,
        Token(chain, deployment.token),
        ParametersContract(chain, deployment.parameters),
        JobEscrow(chain, deployment.escrow),
        Seals(chain, deployment.seals),
    )
