"""The contracts that a market names, for whoever sends them transactions."""

from contracts.chain.deployment import Deployment
from market.bodies.network import NetworkView


def deployment_of(network: NetworkView) -> Deployment:
    """Where the contracts of a market are."""
    addresses = network.contracts.model_dump()
    return Deployment(chain_id=network.chain_id, block=network.deployed_block, **addresses)
