"""The offer that loses: its ask is the price of those that win. Then its owner takes it back.

It asks what the spare lease is paid, so it is not bought as one (`market/domain/matching.py`); it
could replace the provider that is killed, and that is not its part.
"""

from pathlib import Path

from contracts.terms.errors import NotFound
from market.bodies.offers import Withdrawal
from market.bodies.routes import DELETE_OFFER
from market.bodies.signing import withdrawal_digest
from tallystick.provider.folder import ProviderFolder
from tallystick.sdk.client import MarketClient


async def withdraw(client: MarketClient, home: Path) -> None:
    """Take back the offer of a provider whose agent was stopped.

    Raises:
        Conflict: the agent runs.
        NotFound: it never offered.
    """
    folder = ProviderFolder(home)
    try:
        offer, session = folder.offer(), folder.agent_session()
    finally:
        folder.close()
    if offer is None:
        raise NotFound(f"{home} holds no offer")
    name = offer.message.digest()
    signature = session.private_key.sign(withdrawal_digest(name))
    await client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=name)
